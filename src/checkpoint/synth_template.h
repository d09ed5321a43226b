// SPDX-License-Identifier: Apache-2.0
/* synth_template.h - the published chat template of Qwen3.6, written beside a random model so that
 * the folder is complete. Data of the model family, not wording of this program.
 *
 * Path:     synth_text.c.
 * Owns:     nothing.
 * Source:   chat_template.jinja of Qwen3.6 (Apache-2.0), 7,764 bytes, SHA-256 e84f32a2...;
 *           test_synth_text.c compares it with the file. */
#ifndef LILY_CHECKPOINT_SYNTH_TEMPLATE_H
#define LILY_CHECKPOINT_SYNTH_TEMPLATE_H

// clang-format off
#define SYNTH_TEMPLATE \
    "{%- set image_count = namespace(value=0) %}\n" \
    "{%- set video_count = namespace(value=0) %}\n" \
    "{%- macro render_content(content, do_vision_count, is_system_content=false) %}\n" \
    "    {%- if content is string %}\n" \
    "        {{- content }}\n" \
    "    {%- elif content is iterable and content is not mapping %}\n" \
    "        {%- for item in content %}\n" \
    "            {%- if 'image' in item or 'image_url' in item or item.type == 'image' " \
    "%}\n" \
    "                {%- if is_system_content %}\n" \
    "                    {{- raise_exception('System message cannot contain images.') " \
    "}}\n" \
    "                {%- endif %}\n" \
    "                {%- if do_vision_count %}\n" \
    "                    {%- set image_count.value = image_count.value + 1 %}\n" \
    "                {%- endif %}\n" \
    "                {%- if add_vision_id %}\n" \
    "                    {{- 'Picture ' ~ image_count.value ~ ': ' }}\n" \
    "                {%- endif %}\n" \
    "                {{- '<|vision_start|><|image_pad|><|vision_end|>' }}\n" \
    "            {%- elif 'video' in item or item.type == 'video' %}\n" \
    "                {%- if is_system_content %}\n" \
    "                    {{- raise_exception('System message cannot contain videos.') " \
    "}}\n" \
    "                {%- endif %}\n" \
    "                {%- if do_vision_count %}\n" \
    "                    {%- set video_count.value = video_count.value + 1 %}\n" \
    "                {%- endif %}\n" \
    "                {%- if add_vision_id %}\n" \
    "                    {{- 'Video ' ~ video_count.value ~ ': ' }}\n" \
    "                {%- endif %}\n" \
    "                {{- '<|vision_start|><|video_pad|><|vision_end|>' }}\n" \
    "            {%- elif 'text' in item %}\n" \
    "                {{- item.text }}\n" \
    "            {%- else %}\n" \
    "                {{- raise_exception('Unexpected item type in content.') }}\n" \
    "            {%- endif %}\n" \
    "        {%- endfor %}\n" \
    "    {%- elif content is none or content is undefined %}\n" \
    "        {{- '' }}\n" \
    "    {%- else %}\n" \
    "        {{- raise_exception('Unexpected content type.') }}\n" \
    "    {%- endif %}\n" \
    "{%- endmacro %}\n" \
    "{%- if not messages %}\n" \
    "    {{- raise_exception('No messages provided.') }}\n" \
    "{%- endif %}\n" \
    "{%- if tools and tools is iterable and tools is not mapping %}\n" \
    "    {{- '<|im_start|>system\\n' }}\n" \
    "    {{- \"# Tools\\n\\nYou have access to the following functions:\\n\\n<tools>\" " \
    "}}\n" \
    "    {%- for tool in tools %}\n" \
    "        {{- \"\\n\" }}\n" \
    "        {{- tool | tojson }}\n" \
    "    {%- endfor %}\n" \
    "    {{- \"\\n</tools>\" }}\n" \
    "    {{- '\\n\\nIf you choose to call a function ONLY reply in the following format " \
    "with NO suffix:\\n\\n<tool_call>\\n<function=example_function_name>\\n<parameter=exa" \
    "mple_parameter_1>\\nvalue_1\\n</parameter>\\n<parameter=example_parameter_2>\\nThis " \
    "is the value for the second parameter\\nthat can span\\nmultiple " \
    "lines\\n</parameter>\\n</function>\\n</tool_call>\\n\\n<IMPORTANT>\\nReminder:\\n- " \
    "Function calls MUST follow the specified format: an inner <function=...></function> " \
    "block must be nested within <tool_call></tool_call> XML tags\\n- Required " \
    "parameters MUST be specified\\n- You may provide optional reasoning for your " \
    "function call in natural language BEFORE the function call, but NOT after\\n- If " \
    "there is no function call available, answer the question like normal with your " \
    "current knowledge and do not tell the user about function calls\\n</IMPORTANT>' }}\n" \
    "    {%- if messages[0].role == 'system' %}\n" \
    "        {%- set content = render_content(messages[0].content, false, true)|trim %}\n" \
    "        {%- if content %}\n" \
    "            {{- '\\n\\n' + content }}\n" \
    "        {%- endif %}\n" \
    "    {%- endif %}\n" \
    "    {{- '<|im_end|>\\n' }}\n" \
    "{%- else %}\n" \
    "    {%- if messages[0].role == 'system' %}\n" \
    "        {%- set content = render_content(messages[0].content, false, true)|trim %}\n" \
    "        {{- '<|im_start|>system\\n' + content + '<|im_end|>\\n' }}\n" \
    "    {%- endif %}\n" \
    "{%- endif %}\n" \
    "{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) " \
    "%}\n" \
    "{%- for message in messages[::-1] %}\n" \
    "    {%- set index = (messages|length - 1) - loop.index0 %}\n" \
    "    {%- if ns.multi_step_tool and message.role == \"user\" %}\n" \
    "        {%- set content = render_content(message.content, false)|trim %}\n" \
    "        {%- if not(content.startswith('<tool_response>') and " \
    "content.endswith('</tool_response>')) %}\n" \
    "            {%- set ns.multi_step_tool = false %}\n" \
    "            {%- set ns.last_query_index = index %}\n" \
    "        {%- endif %}\n" \
    "    {%- endif %}\n" \
    "{%- endfor %}\n" \
    "{%- if ns.multi_step_tool %}\n" \
    "    {{- raise_exception('No user query found in messages.') }}\n" \
    "{%- endif %}\n" \
    "{%- for message in messages %}\n" \
    "    {%- set content = render_content(message.content, true)|trim %}\n" \
    "    {%- if message.role == \"system\" %}\n" \
    "        {%- if not loop.first %}\n" \
    "            {{- raise_exception('System message must be at the beginning.') }}\n" \
    "        {%- endif %}\n" \
    "    {%- elif message.role == \"user\" %}\n" \
    "        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' " \
    "}}\n" \
    "    {%- elif message.role == \"assistant\" %}\n" \
    "        {%- set reasoning_content = '' %}\n" \
    "        {%- if message.reasoning_content is string %}\n" \
    "            {%- set reasoning_content = message.reasoning_content %}\n" \
    "        {%- else %}\n" \
    "            {%- if '</think>' in content %}\n" \
    "                {%- set reasoning_content = " \
    "content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n" \
    "                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n" \
    "            {%- endif %}\n" \
    "        {%- endif %}\n" \
    "        {%- set reasoning_content = reasoning_content|trim %}\n" \
    "        {%- if (preserve_thinking is defined and preserve_thinking is true) or " \
    "(loop.index0 > ns.last_query_index) %}\n" \
    "            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content " \
    "+ '\\n</think>\\n\\n' + content }}\n" \
    "        {%- else %}\n" \
    "            {{- '<|im_start|>' + message.role + '\\n' + content }}\n" \
    "        {%- endif %}\n" \
    "        {%- if message.tool_calls and message.tool_calls is iterable and " \
    "message.tool_calls is not mapping %}\n" \
    "            {%- for tool_call in message.tool_calls %}\n" \
    "                {%- if tool_call.function is defined %}\n" \
    "                    {%- set tool_call = tool_call.function %}\n" \
    "                {%- endif %}\n" \
    "                {%- if loop.first %}\n" \
    "                    {%- if content|trim %}\n" \
    "                        {{- '\\n\\n<tool_call>\\n<function=' + tool_call.name + " \
    "'>\\n' }}\n" \
    "                    {%- else %}\n" \
    "                        {{- '<tool_call>\\n<function=' + tool_call.name + '>\\n' " \
    "}}\n" \
    "                    {%- endif %}\n" \
    "                {%- else %}\n" \
    "                    {{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}\n" \
    "                {%- endif %}\n" \
    "                {%- if tool_call.arguments is defined %}\n" \
    "                    {%- for args_name, args_value in tool_call.arguments|items %}\n" \
    "                        {{- '<parameter=' + args_name + '>\\n' }}\n" \
    "                        {%- set args_value = args_value | string if args_value is " \
    "string else args_value | tojson | safe %}\n" \
    "                        {{- args_value }}\n" \
    "                        {{- '\\n</parameter>\\n' }}\n" \
    "                    {%- endfor %}\n" \
    "                {%- endif %}\n" \
    "                {{- '</function>\\n</tool_call>' }}\n" \
    "            {%- endfor %}\n" \
    "        {%- endif %}\n" \
    "        {{- '<|im_end|>\\n' }}\n" \
    "    {%- elif message.role == \"tool\" %}\n" \
    "        {%- if loop.previtem and loop.previtem.role != \"tool\" %}\n" \
    "            {{- '<|im_start|>user' }}\n" \
    "        {%- endif %}\n" \
    "        {{- '\\n<tool_response>\\n' }}\n" \
    "        {{- content }}\n" \
    "        {{- '\\n</tool_response>' }}\n" \
    "        {%- if not loop.last and loop.nextitem.role != \"tool\" %}\n" \
    "            {{- '<|im_end|>\\n' }}\n" \
    "        {%- elif loop.last %}\n" \
    "            {{- '<|im_end|>\\n' }}\n" \
    "        {%- endif %}\n" \
    "    {%- else %}\n" \
    "        {{- raise_exception('Unexpected message role.') }}\n" \
    "    {%- endif %}\n" \
    "{%- endfor %}\n" \
    "{%- if add_generation_prompt %}\n" \
    "    {{- '<|im_start|>assistant\\n' }}\n" \
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n" \
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n" \
    "    {%- else %}\n" \
    "        {{- '<think>\\n' }}\n" \
    "    {%- endif %}\n" \
    "{%- endif %}"
// clang-format on

#endif

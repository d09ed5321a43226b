// SPDX-License-Identifier: Apache-2.0
/* chat_fixed.h - the fixed sentences of the family's chat template. The model was trained on these
 * bytes: they are data of the published template, not wording of this program.
 *
 * Path:     chat.c writes them around the tool schemas.
 * Owns:     nothing.
 * Source: chat_template.jinja of Qwen3.6 (SHA-256 e84f32a2...), the same in the 3.5 templates. */
#ifndef LILY_TEXT_CHAT_FIXED_H
#define LILY_TEXT_CHAT_FIXED_H

// clang-format off
#define CHAT_FIXED_TOOLS_HEAD \
    "# Tools\n" \
    "\n" \
    "You have access to the following functions:\n" \
    "\n" \
    "<tools>"

#define CHAT_FIXED_TOOLS_RULES \
    "\n</tools>" \
    "\n" \
    "\n" \
    "If you choose to call a function ONLY reply in the following format with NO " \
    "suffix:\n" \
    "\n" \
    "<tool_call>\n" \
    "<function=example_function_name>\n" \
    "<parameter=example_parameter_1>\n" \
    "value_1\n" \
    "</parameter>\n" \
    "<parameter=example_parameter_2>\n" \
    "This is the value for the second parameter\n" \
    "that can span\n" \
    "multiple lines\n" \
    "</parameter>\n" \
    "</function>\n" \
    "</tool_call>\n" \
    "\n" \
    "<IMPORTANT>\n" \
    "Reminder:\n" \
    "- Function calls MUST follow the specified format: an inner " \
    "<function=...></function> block must be nested within <tool_call></tool_call> XML " \
    "tags\n" \
    "- Required parameters MUST be specified\n" \
    "- You may provide optional reasoning for your function call in natural language " \
    "BEFORE the function call, but NOT after\n" \
    "- If there is no function call available, answer the question like normal with your " \
    "current knowledge and do not tell the user about function calls\n" \
    "</IMPORTANT>"
// clang-format on

#endif

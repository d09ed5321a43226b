// SPDX-License-Identifier: Apache-2.0
/* wire_tokens.c - the small routes: models, tokenize, detokenize.
 *
 * Owns:     nothing past a call.  Thread: one. */
#include "wire/fields.h"

#include "base/mem.h"

/* Appends v's text and frees both. */
static Status tokens_append(StrBuf *out, json_t *v, Err *err) {
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    if (!text)
        return err_set(err, STATUS_MEMORY, "out of memory: the answer's JSON");
    strbuf_printf(out, "%s\n", text);
    mem_free(text); // jansson allocates by mem_alloc
    return strbuf_check(out, err);
}

static json_t *model_json(const char *name, int64_t created, int32_t context) {
    return json_pack("{s:s, s:s, s:I, s:s, s:i, s:i}", "id", name, "object", "model", "created",
                     (json_int_t)created, "owned_by", "lily", "context_length", context,
                     "max_model_len", context);
}

Status wire_models_json(StrBuf *out, const char *const *names, int n, int64_t created,
                        int32_t context, bool is_list, Err *err) {
    if (!is_list)
        return tokens_append(out, model_json(names[0], created, context), err);
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, model_json(names[i], created, context));
    return tokens_append(out, json_pack("{s:s, s:o}", "object", "list", "data", list), err);
}

/* Ids of "messages" through the template, or of "prompt" or "content". */
static Status tokenize_ids(TokenIds *ids, const json_t *body, const Tokenizer *tokenizer,
                           ChatFamily family, WireFault *fault) {
    const json_t *messages = field_get(body, "messages");
    if (messages) {
        ChatPrompt prompt = {0};
        bool add = true;
        TRY(field_bool(&add, body, "add_generation_prompt", fault));
        ChatOptions options = {.add_generation_prompt = add,
                               .enable_thinking = -1,
                               .preserve_thinking = -1,
                               .is_lenient = true,
                               .is_text_only = true};
        TRY(chat_render(&prompt, family, messages, field_get(body, "tools"), &options,
                        &fault->err));
        Status status = tokenizer_encode(tokenizer, ids, strbuf_view(&prompt.text), prompt.trusted,
                                         &fault->err);
        chat_prompt_fini(&prompt);
        return status;
    }
    StrView text = {0};
    bool is_special = true;
    TRY(field_text(&text, body, "content", fault));
    TRY(field_text(&text, body, "prompt", fault));
    TRY(field_bool(&is_special, body, "parse_special", fault));
    if (!text.ptr)
        return field_fault(fault, "content", "expected one of content, prompt and messages");
    return is_special ? tokenizer_encode(tokenizer, ids, text, NULL, &fault->err)
                      : tokenizer_encode_plain(tokenizer, ids, text, &fault->err);
}

Status wire_tokenize(StrBuf *out, StrView body, const Tokenizer *tokenizer, ChatFamily family,
                     int32_t context, WireFault *fault) {
    json_t *v = NULL;
    TokenIds ids = {0};
    TRY(field_body(&v, body, fault));
    Status status = tokenize_ids(&ids, v, tokenizer, family, fault);
    json_decref(v);
    if (status == STATUS_OK) {
        json_t *list = json_array();
        for (size_t i = 0; i < ids.n; i++)
            json_array_append_new(list, json_integer(ids.ids[i]));
        status = tokens_append(out,
                               json_pack("{s:o, s:I, s:i}", "tokens", list, "count",
                                         (json_int_t)ids.n, "max_model_len", context),
                               &fault->err);
    }
    token_ids_fini(&ids);
    return status;
}

Status wire_detokenize(StrBuf *out, StrView body, const Tokenizer *tokenizer, WireFault *fault) {
    json_t *v = NULL;
    TRY(field_body(&v, body, fault));
    const json_t *list = field_get(v, "tokens");
    TokenIds ids = {0};
    StrBuf text = {0};
    Status status = json_is_array(list)
                        ? STATUS_OK
                        : field_fault(fault, "tokens", "expected a list of ids, found %s",
                                      json_type_text(list));
    size_t i;
    const json_t *id;
    json_array_foreach(list, i, id) {
        json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (status == STATUS_OK && (n < 0 || n >= tokenizer_n_rows(tokenizer)))
            status = field_fault(fault, "tokens", "entry %zu: expected an id from 0 to %d", i,
                                 tokenizer_n_rows(tokenizer) - 1);
        if (status == STATUS_OK)
            status = token_ids_append(&ids, (int32_t)n, &fault->err);
    }
    if (status == STATUS_OK)
        status = tokenizer_decode(tokenizer, &text, ids.ids, ids.n, false, &fault->err);
    if (status == STATUS_OK)
        status = tokens_append(out,
                               json_pack("{s:s%, s:s%}", "content", text.ptr ? text.ptr : "",
                                         text.len, "prompt", text.ptr ? text.ptr : "", text.len),
                               &fault->err);
    json_decref(v);
    token_ids_fini(&ids);
    strbuf_fini(&text);
    return status;
}

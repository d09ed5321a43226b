// SPDX-License-Identifier: Apache-2.0
/* api_chat.c - a conversation: its messages and tools as JSON values.
 *
 * Path:     lily_chat_add and its like fill it; api_answer.c reads it and adds the answer.
 * Owns:     a LilyChat, one reference to its model.  Thread: one at a time (is_busy refuses more).
 * Not here: the answer (api_answer.c); what the template makes of a message (src/text/chat.h). */
#include "api.h"

#include "base/limits.h"
#include "base/mem.h"
#include "base/utf8.h"

#include <string.h>

LilyStatus api_chat_take(LilyChat *chat, LilyError *error) {
    if (!chat)
        return api_refuse(error, STATUS_INVALID, "expected a conversation, found NULL");
    if (atomic_exchange(&chat->is_busy, true))
        return api_refuse(error, STATUS_BUSY, "the conversation is being answered");
    return LILY_OK;
}

void api_chat_give(LilyChat *chat) { atomic_store(&chat->is_busy, false); }

/* Ends a function that has taken the conversation. */
static LilyStatus chat_leave(LilyChat *chat, Status status, Err *err, LilyError *error) {
    api_chat_give(chat);
    if (status == STATUS_OK)
        return LILY_OK;
    err->code = status;
    return api_fail(error, err);
}

LilyStatus lily_chat_open(LilyChat **out, LilyModel *model, LilyError *error) {
    if (!out || !model)
        return api_refuse(error, STATUS_INVALID, "lily_chat_open: expected a %s, found NULL",
                          out ? "model" : "place for the conversation");
    Err err = {0};
    (void)json_take_alloc_failure();
    LilyChat *chat = mem_zalloc(1, sizeof *chat);
    json_t *messages = json_array();
    if (json_take_alloc_failure() || !chat || !messages) {
        json_decref(messages);
        mem_free(chat);
        err.code = err_memory(&err, "conversation", sizeof *chat);
        return api_fail(error, &err);
    }
    chat->messages = messages;
    atomic_init(&chat->is_busy, false);
    atomic_init(&chat->is_cancelled, false);
    atomic_fetch_add(&model->n_refs, 1);
    chat->model = model;
    *out = chat;
    return LILY_OK;
}

void lily_chat_close(LilyChat *chat) {
    if (!chat)
        return;
    CHECK(!atomic_load(&chat->is_busy));
    json_decref(chat->messages);
    json_decref(chat->tools);
    api_model_release(chat->model);
    mem_free(chat);
}

size_t lily_chat_n_messages(const LilyChat *chat) {
    return chat ? json_array_size(chat->messages) : 0;
}

/* ---- adding ---- */

/* Appends v (taken) to the messages. */
static Status chat_append(LilyChat *chat, json_t *v, Err *err) {
    size_t n = json_array_size(chat->messages);
    bool is_good = v && json_array_append_new(chat->messages, v) == 0;
    if (!json_take_alloc_failure() && is_good)
        return STATUS_OK;
    if (json_array_size(chat->messages) > n)
        json_array_remove(chat->messages, n);
    return err_memory(err, "message", 0);
}

static Status chat_add_text(LilyChat *chat, const char *role, StrView text, Err *err) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    bool is_role = false;
    for (size_t i = 0; role && i < COUNT_OF(roles); i++)
        is_role = is_role || strcmp(role, roles[i]) == 0;
    if (!is_role)
        return err_set(err, STATUS_INVALID,
                       "role: expected system, user, assistant or tool, found %s",
                       role ? role : "NULL");
    if (text.len > LIMIT_MESSAGES_BYTES)
        return err_set(err, STATUS_TOO_LARGE, "message: %zu bytes, at most %d", text.len,
                       LIMIT_MESSAGES_BYTES);
    size_t bad;
    if (!utf8_is_valid(text.ptr, text.len, &bad))
        return err_set(err, STATUS_INVALID, "message: not valid UTF-8 at byte %zu", bad);
    (void)json_take_alloc_failure();
    json_t *v =
        json_pack("{s:s, s:s%}", "role", role, "content", text.len ? text.ptr : "", text.len);
    return chat_append(chat, v, err);
}

LilyStatus lily_chat_add(LilyChat *chat, const char *role, const char *text, size_t len,
                         LilyError *error) {
    if (!text && len)
        return api_refuse(error, STATUS_INVALID, "message: expected a text, found NULL");
    LilyStatus taken = api_chat_take(chat, error);
    if (taken != LILY_OK)
        return taken;
    Err err = {0};
    Status status = chat_add_text(chat, role, api_text(text, len), &err);
    return chat_leave(chat, status, &err, error);
}

/* Reads JSON of the caller's. */
static Status chat_read(json_t **out, const char *json, size_t len, const char *name, Err *err) {
    StrView text = api_text(json, len);
    if (text.len > LIMIT_MESSAGES_BYTES)
        return err_set(err, STATUS_TOO_LARGE, "%s: %zu bytes, at most %d", name, text.len,
                       LIMIT_MESSAGES_BYTES);
    return json_read(out, text, name, err);
}

/* What the template would refuse one day is refused now, while the caller knows where it is from.
 */
static Status chat_check(const LilyChat *chat, const json_t *message, Err *err) {
    (void)json_take_alloc_failure();
    json_t *alone = json_array();
    bool is_good = alone && json_array_append(alone, (json_t *)message) == 0;
    if (json_take_alloc_failure() || !is_good) {
        json_decref(alone);
        return err_memory(err, "message", 0);
    }
    ChatPrompt prompt = {0};
    ChatOptions options = {.add_generation_prompt = true,
                           .enable_thinking = -1,
                           .preserve_thinking = -1,
                           .is_lenient = true,
                           .is_text_only = true};
    Status status =
        chat_render(&prompt, chat->model->runner.turn.family, alone, NULL, &options, err);
    chat_prompt_fini(&prompt);
    json_decref(alone);
    return status;
}

static Status chat_add_value(LilyChat *chat, json_t *v, Err *err) {
    size_t before = json_array_size(chat->messages);
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    Status status = STATUS_OK;
    (void)json_take_alloc_failure();
    for (size_t i = 0; i < n && status == STATUS_OK; i++) {
        json_t *m = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role")))
            status = err_set(err, STATUS_INVALID,
                             "message %zu: expected an object with a role, found %s", i,
                             json_is_object(m) ? "none" : json_type_text(m));
        else if ((status = chat_check(chat, m, err)) != STATUS_OK)
            err_prefix(err, "message %zu (%s)", i, json_string_value(json_object_get(m, "role")));
        else
            status = chat_append(chat, json_incref(m), err);
    }
    while (status != STATUS_OK && json_array_size(chat->messages) > before)
        json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    return status;
}

LilyStatus lily_chat_add_json(LilyChat *chat, const char *json, size_t len, LilyError *error) {
    if (!json)
        return api_refuse(error, STATUS_INVALID, "messages: expected JSON, found NULL");
    LilyStatus taken = api_chat_take(chat, error);
    if (taken != LILY_OK)
        return taken;
    Err err = {0};
    json_t *v = NULL;
    Status status = chat_read(&v, json, len, "messages", &err);
    if (status == STATUS_OK)
        status = chat_add_value(chat, v, &err);
    json_decref(v);
    return chat_leave(chat, status, &err, error);
}

LilyStatus lily_chat_set_tools(LilyChat *chat, const char *json, size_t len, LilyError *error) {
    LilyStatus taken = api_chat_take(chat, error);
    if (taken != LILY_OK)
        return taken;
    Err err = {0};
    json_t *v = NULL;
    Status status = json ? chat_read(&v, json, len, "tools", &err) : STATUS_OK;
    if (status == STATUS_OK && v && !json_is_array(v))
        status =
            err_set(&err, STATUS_INVALID, "tools: expected a list, found %s", json_type_text(v));
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(v); i++)
        if (!json_is_object(json_array_get(v, i)))
            status = err_set(&err, STATUS_INVALID, "tools: tool %zu: expected an object, found %s",
                             i, json_type_text(json_array_get(v, i)));
    if (status == STATUS_OK) {
        json_decref(chat->tools);
        chat->tools = v;
        v = NULL;
    }
    json_decref(v);
    return chat_leave(chat, status, &err, error);
}

/* ---- reading, cutting ---- */

LilyStatus lily_chat_truncate(LilyChat *chat, size_t n, LilyError *error) {
    LilyStatus taken = api_chat_take(chat, error);
    if (taken != LILY_OK)
        return taken;
    while (json_array_size(chat->messages) > n)
        json_array_remove(chat->messages, json_array_size(chat->messages) - 1);
    api_chat_give(chat);
    return LILY_OK;
}

LilyStatus lily_chat_json(LilyChat *chat, char **out, size_t *len, LilyError *error) {
    if (!out)
        return api_refuse(error, STATUS_INVALID, "lily_chat_json: expected a place, found NULL");
    LilyStatus taken = api_chat_take(chat, error);
    if (taken != LILY_OK)
        return taken;
    Err err = {0};
    StrBuf text = {0};
    Status status = json_print(&text, chat->messages, JSON_INDENT(1), &err);
    if (status != STATUS_OK) {
        strbuf_fini(&text);
    } else {
        *out = text.ptr;
        if (len)
            *len = text.len;
    }
    return chat_leave(chat, status, &err, error);
}

void lily_chat_cancel(LilyChat *chat) {
    if (chat)
        atomic_store(&chat->is_cancelled, true);
}

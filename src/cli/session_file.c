// SPDX-License-Identifier: Apache-2.0
/* session_file.c - conversations, texts and tools from and to files.
 *
 * Owns:     nothing.  Thread: main.
 *
 * A saved conversation is {"format": "lily-chat-1", "model": NAME, "messages": [...], "tools":
 * [...]}; a bare list of messages is read too. */
#define _POSIX_C_SOURCE 200809L
#include "cli/session.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/model.h"

#include <errno.h>
#include <sys/stat.h>

static const char FORMAT[] = "lily-chat-1";

/* "~/x" is in the home folder. mem_free it; NULL: out of memory. */
static char *file_expand(const char *path) {
    const char *home = getenv("HOME");
    if (path[0] == '~' && path[1] == '/' && home)
        return file_join(home, path + 2);
    return mem_strdup(path, strlen(path));
}

static Status session_dump(Session *s, StrBuf *out, Err *err) {
    json_t *messages = NULL, *tools = NULL;
    TRY(session_messages(s, &messages, err));
    json_t *v = json_pack("{s:s, s:s, s:o}", "format", FORMAT, "model", model_spec(s->args),
                          "messages", messages);
    bool is_good = v != NULL;
    if (is_good && s->tools.len) {
        Status status = json_read(&tools, strbuf_view(&s->tools), "tools", err);
        if (status != STATUS_OK) {
            json_decref(v);
            return status;
        }
        is_good = json_object_set_new(v, "tools", tools) == 0;
    }
    Status status =
        is_good ? json_print(out, v, JSON_INDENT(1), err) : err_memory(err, "conversation", 0);
    json_decref(v);
    strbuf_append_char(out, '\n');
    return status == STATUS_OK ? strbuf_check(out, err) : status;
}

Status session_save(Session *s, const char *path, Err *err) {
    StrBuf text = {0};
    FileWriter *w = NULL;
    char *full = file_expand(path);
    Status status = full ? session_dump(s, &text, err) : err_memory(err, "path", strlen(path));
    if (status == STATUS_OK)
        status = file_writer_open(&w, full, err);
    if (status == STATUS_OK)
        status = file_writer_append(w, text.ptr, text.len, err);
    if (status == STATUS_OK)
        status = file_writer_commit(w, err);
    file_writer_close(w);
    strbuf_fini(&text);
    mem_free(full);
    return status;
}

/* Takes over what a saved conversation holds. */
static Status session_take(Session *s, const json_t *v, const char *path, Err *err) {
    const json_t *messages = json_is_array(v) ? v : json_object_get(v, "messages");
    const json_t *tools = json_object_get(v, "tools");
    if (!json_is_array(messages))
        return err_set(err, STATUS_FORMAT,
                       "%s: expected a saved conversation or a list of messages, found %s", path,
                       json_is_object(v) ? "an object without messages" : json_type_text(v));
    StrBuf new_tools = {0}, system = {0}, old_tools = s->tools;
    Status status = tools ? json_print(&new_tools, tools, JSON_COMPACT, err) : STATUS_OK;
    const json_t *first = json_array_get(messages, 0);
    if (str_equal(json_text(json_object_get(first, "role")), STR("system")))
        strbuf_append_view(&system, json_text(json_object_get(first, "content")));
    if (status == STATUS_OK)
        status = strbuf_check(&system, err);
    s->tools = new_tools; // the new conversation is made with them
    if (status == STATUS_OK)
        status = session_replace(s, messages, err);
    if (status != STATUS_OK) {
        err_prefix(err, "%s", path);
        s->tools = old_tools;
        strbuf_fini(&new_tools);
        strbuf_fini(&system);
        return status;
    }
    strbuf_fini(&old_tools);
    strbuf_fini(&s->system);
    s->system = system;
    return STATUS_OK;
}

Status session_load(Session *s, const char *path, Err *err) {
    json_t *v = NULL;
    char *full = file_expand(path);
    if (!full)
        return err_memory(err, "path", strlen(path));
    Status status = json_read_file(&v, full, LIMIT_MESSAGES_BYTES, err);
    if (status == STATUS_OK)
        status = session_take(s, v, full, err);
    json_decref(v);
    mem_free(full);
    return status;
}

Status session_attach(Session *s, const char *path, Err *err) {
    StrBuf text = {0};
    char *full = file_expand(path);
    if (!full)
        return err_memory(err, "path", strlen(path));
    Status status = file_read_all(&text, full, LIMIT_MESSAGES_BYTES, err);
    size_t bad;
    if (status == STATUS_OK && !utf8_is_valid(text.ptr, text.len, &bad))
        status =
            err_set(err, STATUS_INVALID, "%s: not a text file: no UTF-8 at byte %zu", full, bad);
    if (status == STATUS_OK) {
        size_t len = s->attached.len;
        strbuf_printf(&s->attached, "%s:\n\n", path);
        strbuf_append(&s->attached, text.ptr, text.len);
        strbuf_append(&s->attached, "\n\n", 2);
        status = strbuf_check(&s->attached, err);
        if (status == STATUS_OK) {
            session_note(s, "%zu bytes of %s go with your next message", text.len, path);
        } else { // what was attached before stays
            s->attached.is_failed = false;
            s->attached.len = len;
            if (s->attached.ptr)
                s->attached.ptr[len] = 0;
        }
    }
    strbuf_fini(&text);
    mem_free(full);
    return status;
}

Status session_read_tools(Session *s, const char *path, Err *err) {
    LilyError error;
    StrBuf text = {0};
    char *full = file_expand(path);
    if (!full)
        return err_memory(err, "path", strlen(path));
    Status status = file_read_all(&text, full, LIMIT_MESSAGES_BYTES, err);
    if (status == STATUS_OK &&
        lily_chat_set_tools(s->chat, text.ptr, text.len, &error) != LILY_OK) {
        status = talk_fail(err, &error);
        err_prefix(err, "%s", full);
    }
    if (status == STATUS_OK) {
        strbuf_fini(&s->tools);
        s->tools = text;
        text = (StrBuf){0};
    }
    strbuf_fini(&text);
    mem_free(full);
    return status;
}

/* Makes every folder on the way to path's last part; failures show when the file is written. */
static void file_make_folders(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        (void)mkdir(path, 0700);
        *slash = '/';
    }
}

char *session_history_path(void) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    StrBuf path = {0};
    if (state && state[0] == '/')
        strbuf_printf(&path, "%s/lily/history", state);
    else if (home && home[0] == '/')
        strbuf_printf(&path, "%s/.local/state/lily/history", home);
    if (path.is_failed || !path.ptr) {
        strbuf_fini(&path);
        return NULL;
    }
    file_make_folders(path.ptr);
    return path.ptr;
}

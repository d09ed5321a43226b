// SPDX-License-Identifier: Apache-2.0
/* chat_family.c - which published template a checkpoint brings.
 *
 * Path:     the engine's open asks once per checkpoint folder.
 * Owns:     nothing.  Thread: any. */
#include "chat.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/mem.h"
#include "base/sha256.h"

typedef struct ChatFamilyRow {
    const char *name;
    const char *sha256; // of the published file, which has no line feed at its end
} ChatFamilyRow;

// Source: the digests of the published files (Qwen3.6-35B-A3B; Qwen3.5-35B-A3B; Qwen3.5-0.8B).
static const ChatFamilyRow chat_family_rows[] = {
    [CHAT_QWEN36] = {"qwen3.6", "e84f32a23fdda27689f868aa4a1a5621f41133e51a48d7f3efcbea2839574259"},
    [CHAT_QWEN35] = {"qwen3.5", "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715"},
    [CHAT_QWEN35_SMALL] = {"qwen3.5-small",
                           "273d8e0e683b885071fb17e08d71e5f2a5ddfb5309756181681de4f5a1822d80"},
};

const char *chat_family_name(ChatFamily family) {
    CHECK((size_t)family < COUNT_OF(chat_family_rows));
    return chat_family_rows[family].name;
}

bool chat_family_find(ChatFamily *out, StrView template_text) {
    char digest[SHA256_TEXT_SIZE];
    while (template_text.len && template_text.ptr[template_text.len - 1] == '\n')
        template_text.len--;
    sha256_text(template_text.ptr, template_text.len, digest);
    for (size_t i = 0; i < COUNT_OF(chat_family_rows); i++)
        if (memcmp(digest, chat_family_rows[i].sha256, SHA256_TEXT_SIZE - 1) == 0) {
            *out = (ChatFamily)i;
            return true;
        }
    return false;
}

/* The template in a tokenizer_config.json: {NULL, 0} when it has none. */
static StrView chat_family_config_template(const json_t *config) {
    const json_t *v = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *row = json_array_get(v, i);
        if (str_equal(json_text(json_object_get(row, "name")), STR("default")))
            return json_text(json_object_get(row, "template"));
    }
    return json_text(v);
}

static void chat_family_settle(ChatFamily *out, StrView text, const char *path, const Log *log) {
    if (chat_family_find(out, text))
        return;
    *out = CHAT_QWEN36;
    log_printf(log, LOG_WARNING,
               "%s: the chat template is none of the known ones; prompts are written as %s does",
               path, chat_family_name(*out));
}

/* Both return STATUS_NOT_FOUND when there is nothing to settle from. */
static Status chat_family_from_jinja(ChatFamily *out, const char *dir, const Log *log, Err *err) {
    StrBuf text = {0};
    char *path = file_join(dir, "chat_template.jinja");
    if (!path)
        return err_memory(err, "path", strlen(dir));
    Status status = file_read_regular(&text, path, LIMIT_TEMPLATE_BYTES, err);
    if (status == STATUS_OK)
        chat_family_settle(out, strbuf_view(&text), path, log);
    strbuf_fini(&text);
    mem_free(path);
    return status;
}

static Status chat_family_from_config(ChatFamily *out, const char *dir, const Log *log, Err *err) {
    json_t *config = NULL;
    StrBuf file = {0};
    char *path = file_join(dir, "tokenizer_config.json");
    if (!path)
        return err_memory(err, "path", strlen(dir));
    Status status = file_read_regular(&file, path, LIMIT_TOKENIZER_BYTES, err);
    if (status == STATUS_OK)
        status = json_read(&config, strbuf_view(&file), path, err);
    strbuf_fini(&file);
    StrView text = chat_family_config_template(config);
    if (status == STATUS_OK && text.ptr)
        chat_family_settle(out, text, path, log);
    else if (status == STATUS_OK)
        status = err_set(err, STATUS_NOT_FOUND, "%s: no chat_template", path);
    json_decref(config);
    mem_free(path);
    return status;
}

Status chat_family_open(ChatFamily *out, const char *dir, const Log *log, Err *err) {
    if (!dir) {
        *out = CHAT_QWEN36;
        return STATUS_OK;
    }
    Err missing = {0};
    Status status = chat_family_from_jinja(out, dir, log, &missing);
    if (status == STATUS_NOT_FOUND)
        status = chat_family_from_config(out, dir, log, &missing);
    if (status == STATUS_NOT_FOUND) {
        *out = CHAT_QWEN36;
        log_printf(log, LOG_WARNING, "%s: no chat template; prompts are written as %s does", dir,
                   chat_family_name(*out));
        return STATUS_OK;
    }
    if (status != STATUS_OK && err)
        *err = missing;
    return status;
}

// SPDX-License-Identifier: Apache-2.0
/* test_session.c - the conversation of `lily chat` when memory or the disk fails: the old file, or
 * the old conversation, stays whole.
 *
 * Path:     make unit; the rest of `lily chat` is tested from outside (tests/py/test_chat.py).
 * Owns:     a random model and a temporary folder.  Thread: main. */
#define _POSIX_C_SOURCE 200809L
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"

#include "unit.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/lily-session-XXXXXX";
static char path[64], note_path[64], tools_path[64];
static CliArgs args;
static Session session;

static const char TOOLS[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{}}}]";

/* The conversation as text; free. */
static char *text_of(const Session *s) {
    char *text = NULL;
    assert_int_equal(lily_chat_json(s->chat, &text, NULL, NULL), LILY_OK);
    return text;
}

static void read_file(StrBuf *out) {
    Err err = {0};
    assert_int_equal(file_read_all(out, path, 1 << 20, &err), STATUS_OK);
}

static void write_file(const char *name, const char *text) {
    FILE *f = fopen(name, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0);
}

static int n_files(void) {
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = -2; // "." and ".."
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void fill(Session *s, const char *text) {
    assert_int_equal(lily_chat_truncate(s->chat, 0, NULL), LILY_OK);
    assert_int_equal(lily_chat_add(s->chat, "system", "be short", LILY_TERMINATED, NULL), LILY_OK);
    assert_int_equal(lily_chat_add(s->chat, "user", text, LILY_TERMINATED, NULL), LILY_OK);
    strbuf_clear(&s->tools);
    strbuf_append(&s->tools, TOOLS, sizeof TOOLS - 1);
    assert_int_equal(lily_chat_set_tools(s->chat, TOOLS, sizeof TOOLS - 1, NULL), LILY_OK);
}

/* Makes the n-th allocation, or the n-th file access, fail. */
typedef void (*FailAfter)(int64_t after);

static void each_failure_of_a_save(FailAfter fail_after, Status kind) {
    Err err = {0};
    fill(&session, "the old one");
    assert_int_equal(session_save(&session, path, &err), STATUS_OK);
    StrBuf before = {0};
    read_file(&before);
    fill(&session, "the new one");
    int64_t after = 0;
    for (;; after++) {
        fail_after(after);
        Status status = session_save(&session, path, &err);
        fail_after(-1);
        StrBuf now = {0};
        read_file(&now);
        assert_int_equal(n_files(), 1);
        if (status == STATUS_OK) {
            assert_non_null(strstr(now.ptr, "the new one"));
            strbuf_fini(&now);
            break;
        }
        assert_int_equal(status, kind);
        assert_string_equal(now.ptr, before.ptr);
        strbuf_fini(&now);
    }
    assert_true(after >= 3);
    strbuf_fini(&before);
}

static void each_failure_of_a_load(FailAfter fail_after, Status kind, int64_t least) {
    Err err = {0};
    fill(&session, "the saved one");
    assert_int_equal(session_save(&session, path, &err), STATUS_OK);
    fill(&session, "the present one");
    char *before = text_of(&session);
    int64_t after = 0;
    for (;; after++) {
        fail_after(after);
        Status status = session_load(&session, path, &err);
        fail_after(-1);
        char *now = text_of(&session);
        assert_string_equal(session.tools.ptr, TOOLS);
        if (status == STATUS_OK) {
            assert_non_null(strstr(now, "the saved one"));
            assert_string_equal(session.system.ptr, "be short");
            lily_free(now);
            break;
        }
        assert_int_equal(status, kind);
        assert_string_equal(now, before);
        lily_free(now);
    }
    assert_true(after >= least);
    lily_free(before);
}

static void test_each_allocation_of_a_save_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_save(mem_fail_after, STATUS_MEMORY);
}

static void test_each_write_of_a_save_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_save(file_fail_after, STATUS_IO);
}

static void test_each_allocation_of_a_load_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_load(mem_fail_after, STATUS_MEMORY, 20);
}

static void test_each_read_of_a_load_fails_once(void **state) {
    UNUSED(state);
    each_failure_of_a_load(file_fail_after, STATUS_IO, 1);
}

/* ---- all commands ---- */

static void say(const char *line) {
    StrView view = str_view(line, strlen(line));
    if (line[0] == '/')
        session_command(&session, view);
    else
        session_say(&session, view);
}

static void run_script(void) {
    char line[160];
    static const char *const lines[] = {
        "/tools",    "/system be brief", "/max 2",    "hello",        "/retry",       "/stats",
        "/show",     "/think on",        "/temp 0.5", "/file \"%s\"", "summarise it", "/undo",
        "/tools %s", "/tools",           "/help",     "/save %s",     "/load %s",     "/new",
        "/system"};
    for (size_t i = 0; i < COUNT_OF(lines); i++) {
        const char *name = strstr(lines[i], "/tools")  ? tools_path
                           : strstr(lines[i], "/file") ? note_path
                                                       : path;
        snprintf(line, sizeof line, strstr(lines[i], "%s") ? lines[i] : "%s",
                 strstr(lines[i], "%s") ? name : lines[i]);
        say(line);
    }
}

/* Whatever fails is told as a failed line, and the conversation goes on with the next one. */
static void each_failure_of_the_commands(FailAfter fail_after, int64_t n_points, int64_t step) {
    for (int64_t after = 0; after < n_points; after += step) {
        fill(&session, "the present one");
        strbuf_clear(&session.attached);
        session.has_failed = false;
        fail_after(after);
        run_script();
        fail_after(-1);
        lily_free(text_of(&session));
    }
    session.has_failed = false;
    fill(&session, "the present one");
    run_script();
    assert_false(session.has_failed);
    assert_int_equal(lily_chat_n_messages(session.chat), 0);
}

/* What the commands print goes nowhere for so long. */
static void hush(int kept[2]) {
    int null = open("/dev/null", O_WRONLY);
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        kept[i] = dup(i + 1);
        assert_int_equal(dup2(null, i + 1), i + 1);
    }
    close(null);
}

static void unhush(const int kept[2]) {
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(dup2(kept[i], i + 1), i + 1);
        close(kept[i]);
    }
}

static void test_each_allocation_of_the_commands_fails_once(void **state) {
    UNUSED(state);
    int kept[2];
    write_file(note_path, "a note");
    write_file(tools_path, TOOLS);
    hush(kept);
    int64_t before = mem_count();
    run_script();
    int64_t n_points = mem_count() - before;
    each_failure_of_the_commands(mem_fail_after, n_points, n_points / 400 + 1);
    unhush(kept);
    assert_true(n_points > 100);
}

static void test_each_file_access_of_the_commands_fails_once(void **state) {
    UNUSED(state);
    int kept[2];
    hush(kept);
    each_failure_of_the_commands(file_fail_after, 20, 1);
    unhush(kept);
}

static int open_all(void **state) {
    UNUSED(state);
    Err err = {0};
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/chat.json", folder);
    snprintf(note_path, sizeof note_path, "%s/a note", folder);
    snprintf(tools_path, sizeof tools_path, "%s/tools.json", folder);
    args = (CliArgs){.model = "synth:tiny,layers=1",
                     .ctx = 256,
                     .threads = 1,
                     .seed = -1,
                     .top_k = -1,
                     .temp = NAN,
                     .top_p = NAN,
                     .min_p = NAN,
                     .repetition = NAN,
                     .presence = NAN,
                     .frequency = NAN};
    return session_open(&session, &args, &err) == STATUS_OK ? 0 : -1;
}

static int close_all(void **state) {
    UNUSED(state);
    session_close(&session);
    unlink(path);
    unlink(note_path);
    unlink(tools_path);
    return rmdir(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_allocation_of_a_save_fails_once),
        cmocka_unit_test(test_each_write_of_a_save_fails_once),
        cmocka_unit_test(test_each_allocation_of_a_load_fails_once),
        cmocka_unit_test(test_each_read_of_a_load_fails_once),
        cmocka_unit_test(test_each_allocation_of_the_commands_fails_once),
        cmocka_unit_test(test_each_file_access_of_the_commands_fails_once),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}

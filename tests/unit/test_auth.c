// SPDX-License-Identifier: Apache-2.0
/* test_auth.c - keys, hosts and origins that pass and that do not.
 *
 * Path:     make unit.
 * Owns:     a temporary file.  Thread: one. */
#define _POSIX_C_SOURCE 200809L // mkstemp
#include "server/auth.h"

#include "base/mem.h"

#include "unit.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Status open_keys(Auth *a, const char *text, Err *err) {
    char path[] = "/tmp/lily-auth-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    Status status = auth_open(a, path, err);
    unlink(path);
    return status;
}

static void test_keys(void **state) {
    UNUSED(state);
    Auth a = {0};
    Err err = {0};
    uint64_t ann, bob, x;
    assert_int_equal(open_keys(&a, "# people\r\n\r\n sk-ann \r\nsk-bob", &err), STATUS_OK);
    assert_int_equal(a.n_keys, 2);
    assert_true(auth_check_key(&a, "Bearer sk-ann", &ann));
    assert_true(auth_check_key(&a, "bearer   sk-bob ", &bob));
    assert_true(ann != 0 && bob != 0 && ann != bob);
    assert_true(auth_check_key(&a, "Bearer sk-ann", &x) && x == ann);
    static const char *const wrong[] = {
        "Bearer sk-an",    "Bearer sk-annn", "Bearer ", "Bearer", "sk-ann", "Basic sk-ann", "",
        "Bearer # people", "Bearer SK-ANN"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++)
        assert_false(auth_check_key(&a, wrong[i], &x));
    assert_false(auth_check_key(&a, NULL, &x));
    auth_close(&a);
    assert_true(auth_check_key(&a, NULL, &x) && x == 0); // no keys: nobody needs one
}

static void test_key_files_that_are_refused(void **state) {
    UNUSED(state);
    Auth a = {0};
    Err err = {0};
    assert_int_equal(open_keys(&a, "", &err), STATUS_FORMAT);
    assert_int_equal(open_keys(&a, "# only words\n", &err), STATUS_FORMAT);
    char long_key[600];
    memset(long_key, 'k', sizeof long_key - 1);
    long_key[sizeof long_key - 1] = 0;
    assert_int_equal(open_keys(&a, long_key, &err), STATUS_FORMAT);
    assert_non_null(strstr(err.text, "line 1"));
    assert_int_equal(auth_open(&a, "/nowhere/keys", &err), STATUS_NOT_FOUND);
    for (int after = 0; after < 2; after++) {
        mem_fail_after(after);
        Status status = open_keys(&a, "k\n", &err);
        mem_fail_after(-1);
        assert_int_equal(status, STATUS_MEMORY);
    }
    assert_null(a.digests);
}

static void test_hosts(void **state) {
    UNUSED(state);
    Auth a = {.is_local = true, .host = "box.lan"};
    static const char *const good[] = {"localhost", "LocalHost:80", "127.0.0.1",   "127.255.0.9:1",
                                       "[::1]",     "[::1]:5",      "box.lan:8080"};
    static const char *const bad[] = {"",
                                      ":80",
                                      "localhost.",
                                      "localhost.evil.org",
                                      "127.0.0.1.evil.org",
                                      "127.1",
                                      "128.0.0.1",
                                      "[::2]",
                                      "[::1",
                                      "evil",
                                      "127.0.0.1 evil"};
    for (size_t i = 0; i < COUNT_OF(good); i++)
        assert_true(auth_check_host(&a, good[i]));
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        assert_false(auth_check_host(&a, bad[i]));
    assert_false(auth_check_host(&a, NULL));
    a.is_local = false;
    assert_true(auth_check_host(&a, "anything"));
}

static void test_origins(void **state) {
    UNUSED(state);
    Auth a = {.is_local = true, .cors = "https://a.example, http://b.example:3000"};
    assert_true(auth_check_origin(&a, NULL, "localhost:8080"));
    assert_true(auth_check_origin(&a, "http://localhost:8080", "localhost:8080"));
    assert_true(auth_check_origin(&a, "https://a.example", "localhost:8080"));
    assert_true(auth_is_cors(&a, "http://b.example:3000"));
    static const char *const bad[] = {"null",
                                      "http://localhost:8081",
                                      "http://localhost:8080.evil",
                                      "https://a.exampl",
                                      "https://a.example.evil",
                                      "http://b.example",
                                      "",
                                      "*"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        assert_false(auth_check_origin(&a, bad[i], "localhost:8080"));
        assert_false(auth_is_cors(&a, bad[i]));
    }
    a.cors = "*";
    assert_true(auth_is_cors(&a, "https://anybody") && !auth_is_cors(&a, NULL));
    a.cors = NULL;
    assert_false(auth_is_cors(&a, "https://a.example"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_key_files_that_are_refused),
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_origins),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

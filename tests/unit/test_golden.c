// SPDX-License-Identifier: Apache-2.0
/* test_golden.c - recorded continuations are read whole, and damage is named.
 *
 * Path:     make unit.
 * Owns:     a temporary file.  Thread: one. */
#define _POSIX_C_SOURCE 200809L
#include "cli/golden.h"

#include "base/file.h"

#include "unit.h"

#include <string.h>
#include <unistd.h>

static void test_the_three_recordings(void **state) {
    UNUSED(state);
    static const struct {
        const char *path;
        int32_t n_prompt, n_steps, first;
        double logprob;
    } rows[] = {
        {"tests/data/goldens/golden_35b_chat.json", 19, 64, 8160, -0.11305},
        {"tests/data/goldens/golden_35b_raw.json", 5, 64, 11751, -0.50282},
        {"tests/data/goldens/golden_35b_long.json", 2687, 32, 220, 0},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Golden g = {0};
        Err err = {0};
        if (golden_read(&g, rows[i].path, &err) != STATUS_OK)
            fail_msg("%s", err.text);
        assert_int_equal(g.n_prompt, rows[i].n_prompt);
        assert_int_equal(g.n_steps, rows[i].n_steps);
        assert_int_equal(g.steps[0].chosen, rows[i].first);
        assert_non_null(g.text);
        assert_int_equal(g.is_chat, i == 0);
        if (rows[i].logprob != 0) {
            double d = g.steps[0].top_logprobs[0] - rows[i].logprob;
            assert_true(d < 1e-5 && d > -1e-5);
        }
        for (int32_t s = 0; s < g.n_steps; s++)
            for (int32_t j = 1; j < g.steps[s].n_top; j++)
                assert_true(g.steps[s].top_logprobs[j] <= g.steps[s].top_logprobs[j - 1]);
        assert_int_equal(golden_check(&g, 248320, &err), STATUS_OK);
        assert_int_equal(golden_check(&g, 100, &err), STATUS_INVALID);
        golden_fini(&g);
    }
}

static void test_damage_is_named(void **state) {
    UNUSED(state);
    static const struct {
        const char *text, *word;
    } rows[] = {
        {"{}", "prompt_token_ids"},
        {"[", "JSON"},
        {"{\"prompt_token_ids\":[],\"steps\":[]}", "prompt_token_ids"},
        {"{\"prompt_token_ids\":[1],\"steps\":[]}", "steps"},
        {"{\"prompt_token_ids\":[-1],\"steps\":[{}]}", "prompt_token_ids"},
        {"{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":1}]}", "topk"},
        {"{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":\"a\"}]}", "chosen"},
        {"{\"prompt_token_ids\":[1],\"steps\":[{\"chosen\":1,\"topk\":[[1]]}]}", "topk"},
    };
    char path[] = "/tmp/lily-test-golden-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        Err err = {0};
        Golden g = {0};
        size_t len = strlen(rows[i].text);
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, rows[i].text, len, 0), len);
        assert_int_equal(golden_read(&g, path, &err), STATUS_FORMAT);
        if (!strstr(err.text, rows[i].word) || !strstr(err.text, path))
            fail_msg("row %zu: %s", i, err.text);
    }
    file_close(fd);
    unlink(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_three_recordings),
        cmocka_unit_test(test_damage_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

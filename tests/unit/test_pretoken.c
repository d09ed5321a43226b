// SPDX-License-Identifier: Apache-2.0
/* test_pretoken.c - pieces of known texts, and a matcher that tries the alternatives one by one.
 *
 * Path:     make unit.  The expression itself runs in tests/py/test_tokenizer_oracle.py.
 * Owns:     nothing.  Thread: one. */
#include "text/pretoken.h"

#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/unicode.h"
#include "unit.h"

/* The pieces of text with '|' between them. */
static void expect_pieces(PretokenRule rule, StrView text, const char *expected) {
    StrBuf out = {0};
    for (size_t at = 0; at < text.len;) {
        size_t end = pretoken_end(rule, text, at);
        assert_in_range(end, at + 1, text.len);
        if (at)
            strbuf_append_char(&out, '|');
        strbuf_append(&out, text.ptr + at, end - at);
        at = end;
    }
    if (!str_equal(strbuf_view(&out), str_view(expected, strlen(expected))))
        fail_msg("\"%.*s\": \"%s\", expected \"%s\"", (int)text.len, text.ptr, out.ptr, expected);
    strbuf_fini(&out);
}

static void test_known_texts(void **state) {
    UNUSED(state);
    static const char *const ROWS[][2] = {
        {"Hello, world!", "Hello|,| world|!"},
        {"  x", " | x"},
        {"a\n\n\nb", "a|\n\n\n|b"},
        {">\n", ">\n"},
        {"x\n", "x|\n"},
        {" 3", " |3"},
        {"  3", " | |3"},
        {"\tx", "\tx"},
        {"123", "1|2|3"},
        {"x2y", "x|2|y"},
        {"I'm we'RE 'story it's", "I|'m| we|'RE| '|story| it|'s"},
        {"'story", "'s|tory"},
        {"'\xc5\xbfx", "'\xc5\xbf|x"}, // long s folds to s
        {"'r 'x' ''s", "'r| '|x|'| ''|s"},
        {"'ll'v'l'", "'ll|'v|'l|'"},
        {"(x)", "(x|)"},
        {"--x", "--|x"},
        {" --x", " --|x"},
        {"\nx", "\n|x"},
        {"\r\n\r\nx", "\r\n\r\n|x"},
        {"  \n  \n  x", "  \n  \n| | x"},
        {"x  ", "x|  "},
        {"x \xc2\xa0y", "x| |\xc2\xa0y"},
        {"\xc2\xa0!", "\xc2\xa0|!"},
        {" !\n\n x", " !\n\n| x"},
        {"\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7", "\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7"},
        {"1\xcc\x81x", "1|\xcc\x81x"},
        {"!\xcc\x81!", "!\xcc\x81|!"},
        {"\xe4\xb8\xad\xe6\x96\x87\xe3\x80\x82", "\xe4\xb8\xad\xe6\x96\x87|\xe3\x80\x82"},
        {"\x1c\x1cx", "\x1c\x1c|x"}, // no white space here
    };
    for (size_t i = 0; i < COUNT_OF(ROWS); i++)
        expect_pieces(PRETOKEN_QWEN35, str_view(ROWS[i][0], strlen(ROWS[i][0])), ROWS[i][1]);
}

static void test_older_rule_leaves_marks_out_of_words(void **state) {
    UNUSED(state);
    static const char *const ROWS[][2] = {
        {"\xe0\xa4\x95\xe0\xa5\x8d\xe0\xa4\xb7", "\xe0\xa4\x95|\xe0\xa5\x8d\xe0\xa4\xb7"},
        {"q\xcc\x81 x", "q|\xcc\x81| x"},
        {"!\xcc\x81!", "!\xcc\x81!"},
        {" \xcc\x81\n", " \xcc\x81\n"},
        {"Hello, it's 42", "Hello|,| it|'s| |4|2"},
    };
    for (size_t i = 0; i < COUNT_OF(ROWS); i++)
        expect_pieces(PRETOKEN_QWEN2, str_view(ROWS[i][0], strlen(ROWS[i][0])), ROWS[i][1]);
}

enum { N_MAX = 24 };

typedef struct Chars {
    uint32_t c[N_MAX + 1]; // a sentinel behind them
    unsigned flags[N_MAX + 1];
    int n;
} Chars;

static bool is_break(const Chars *t, int i) { return t->c[i] == '\r' || t->c[i] == '\n'; }

static bool is_folded(const Chars *t, int i, const char *word) {
    for (; *word; word++, i++) {
        uint32_t c = i < t->n ? t->c[i] : 0;
        c = c == 0x17f ? 's' : c >= 'A' && c <= 'Z' ? c + 32 : c;
        if (c != (uint32_t)*word)
            return false;
    }
    return true;
}

/* Characters that the first alternative to match takes, each tried as the expression writes it. */
static int match(const Chars *t, int at, unsigned word) {
    static const char *const CONTRACTIONS[] = {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"};
    for (size_t k = 0; k < COUNT_OF(CONTRACTIONS); k++)
        if (is_folded(t, at, CONTRACTIONS[k]))
            return (int)strlen(CONTRACTIONS[k]);
    for (int prefix = 1; prefix >= 0; prefix--) {
        int i = at + prefix;
        if (prefix && (is_break(t, at) || t->flags[at] & (UNICODE_LETTER | UNICODE_NUMBER)))
            continue;
        while (i < t->n && t->flags[i] & word)
            i++;
        if (i > at + prefix)
            return i - at;
    }
    if (t->flags[at] & UNICODE_NUMBER)
        return 1;
    for (int prefix = t->c[at] == ' '; prefix >= 0; prefix--) {
        int i = at + prefix;
        while (i < t->n && !(t->flags[i] & (word | UNICODE_NUMBER | UNICODE_SPACE)))
            i++;
        if (i == at + prefix)
            continue;
        while (i < t->n && is_break(t, i))
            i++;
        return i - at;
    }
    int run = at;
    while (run < t->n && t->flags[run] & UNICODE_SPACE)
        run++;
    for (int end = run; end > at; end--) // \s*[\r\n]+
        if (is_break(t, end - 1))
            return end - at;
    for (int end = run; end > at; end--) // \s+(?!\S)
        if (end == t->n || t->flags[end] & UNICODE_SPACE)
            return end - at;
    return run - at; // \s+
}

static void test_random_text_beside_the_alternatives_one_by_one(void **state) {
    UNUSED(state);
    static const uint32_t POOL[] = {
        'a',   'S',   's',    't',   'r',    'e',    'l',    'L',     'v',     'd',
        'm',   '1',   '9',    '!',   '.',    '\'',   '\'',   '\'',    ' ',     ' ',
        ' ',   '\n',  '\n',   '\r',  '\t',   0,      0x1c,   0x85,    0xa0,    0x17f,
        0x301, 0x93e, 0x4e2d, 0x660, 0x2028, 0x200b, 0x3000, 0x1f600, 0xe0100, 0x212a};
    uint64_t seed = (uint64_t)clock_now_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t round = 0; round < 200000; round++) {
        PretokenRule rule = round % 2 ? PRETOKEN_QWEN2 : PRETOKEN_QWEN35;
        unsigned word = rule == PRETOKEN_QWEN2 ? UNICODE_LETTER : UNICODE_LETTER | UNICODE_MARK;
        Chars t = {.n = 1 + (int)(rng_u64(seed, round) % N_MAX)};
        char bytes[N_MAX * UTF8_MAX];
        size_t len = 0, at = 0;
        for (int i = 0; i < t.n; i++) {
            t.c[i] = POOL[rng_u64(seed + 1, round * N_MAX + (uint64_t)i) % COUNT_OF(POOL)];
            t.flags[i] = unicode_flags(t.c[i]);
            len += (size_t)utf8_encode(t.c[i], bytes + len);
        }
        for (int i = 0; i < t.n;) {
            size_t end = at, found = pretoken_end(rule, str_view(bytes, len), at);
            char c[UTF8_MAX];
            int n = match(&t, i, word);
            assert_true(n > 0);
            for (; n > 0; n--)
                end += (size_t)utf8_encode(t.c[i++], c);
            if (found != end)
                fail_msg("round %llu, byte %zu: ends at %zu, expected %zu",
                         (unsigned long long)round, at, found, end);
            at = end;
        }
        assert_int_equal(at, len);
    }
}

static void test_long_runs_are_walked_once(void **state) {
    UNUSED(state);
    enum { N = 1 << 20 };
    static const char *const UNITS[] = {" ",  "\n",       " \n", "a",  "=",  "1", "'",
                                        "' ", "\xcc\x81", "\r ", "'s", " a", "  "};
    for (size_t k = 0; k < COUNT_OF(UNITS); k++) {
        StrBuf text = {0};
        while (text.len < N)
            strbuf_append(&text, UNITS[k], strlen(UNITS[k]));
        size_t n = 0, at = 0;
        while (at < text.len) {
            at = pretoken_end(PRETOKEN_QWEN35, strbuf_view(&text), at);
            n++;
        }
        assert_int_equal(at, text.len);
        assert_true(n >= 1);
        strbuf_fini(&text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_texts),
        cmocka_unit_test(test_older_rule_leaves_marks_out_of_words),
        cmocka_unit_test(test_random_text_beside_the_alternatives_one_by_one),
        cmocka_unit_test(test_long_runs_are_walked_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: Apache-2.0
/* chat.c - the smallest program over the C library: one question, its answer as it is made.
 *
 *     cc chat.c $(pkg-config --cflags --libs lily) -o chat
 *     ./chat /usr/local/share/lily/mini "What is 12 + 30?" */
#include <lily.h>
#include <stdio.h>

static bool on_event(void *context, const LilyEvent *event) {
    (void)context;
    if (event->kind == LILY_EVENT_TEXT) {
        fwrite(event->text.text, 1, event->text.len, stdout);
        fflush(stdout);
    } else if (event->kind == LILY_EVENT_END) {
        printf("\n%d tokens\n", event->figures.n_generated);
    }
    return true; // false would end the answer here
}

int main(int argc, char **argv) {
    LilyModel *model = NULL;
    LilyChat *chat = NULL;
    LilyError error;
    if (argc != 3) {
        fprintf(stderr, "usage: chat MODEL QUESTION\n");
        return 2;
    }
    LilyStatus status = lily_model_open(&model, argv[1], NULL, &error);
    if (status == LILY_OK)
        status = lily_chat_open(&chat, model, &error);
    if (status == LILY_OK)
        status = lily_chat_add(chat, "user", argv[2], LILY_TERMINATED, &error);
    if (status == LILY_OK)
        status = lily_chat_answer(chat, NULL, on_event, NULL, &error);
    if (status != LILY_OK)
        fprintf(stderr, "chat: %s\n", error.text);
    lily_chat_close(chat);
    lily_model_close(model);
    return status == LILY_OK ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
/* limits.h - every cap of the program with its reason. Each fails with a message.
 *
 * Owns:     nothing.  Thread: any. */
#ifndef LILY_BASE_LIMITS_H
#define LILY_BASE_LIMITS_H

enum {
    LIMIT_CONFIG_BYTES = 16 << 20, // config.json is 24 KB; a hundred times the largest seen
    LIMIT_INDEX_BYTES = 64 << 20,  // the index of the full checkpoint is 216 KB
    LIMIT_SAFETENSORS_HEADER =
        16 << 20, // 90 KB at full size; as JSON values in memory 40 times as much
    LIMIT_TOKENIZER_BYTES = 256 << 20, // tokenizer.json is 13 to 20 MB
    LIMIT_ADDED_TOKENS = 4096,         // the family has 33
    LIMIT_TEXT_BYTES = 1 << 30,        // one text to encode: positions in it are int32
    LIMIT_TEMPLATE_BYTES = 1 << 20,    // chat_template.jinja is 8 KB
    LIMIT_MESSAGES_BYTES = 128 << 20,  // a conversation as JSON
    LIMIT_SHARDS = 4096,               // files of one checkpoint
    LIMIT_LAYERS = 256,                // the family has 40; arrays are sized by it
    LIMIT_EXPERTS = 1024,              // the family has 256 to 512
    LIMIT_TOP_K = 32,                  // experts a token
    LIMIT_HIDDEN = 65536,              // widths: keeps every product of two inside 2^32
    LIMIT_VOCAB = 1 << 22,             // the family has 248,320
    LIMIT_EOS = 16,                    // stop ids of a checkpoint
    LIMIT_THREADS = 256,               // of the pool
    LIMIT_CONTEXT = 1 << 24,           // positions are int32 and angles are exact far below it
    LIMIT_STOP_STRINGS = 16,           // of one request
    LIMIT_STOP_BYTES = 1024,           // of one stop string
    LIMIT_LOGIT_BIAS = 1024,           // entries of one request
    LIMIT_TOP_LOGPROBS = 20,           // OpenAI's own cap
};

#endif

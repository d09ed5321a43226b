#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# first_answer.sh - what ./start shows behind the build: one answered question, then a conversation on a
# terminal, or how to go on. LILY names the program (default build/lily).
set -eu
cd "$(dirname "$0")/.."
lily=${LILY:-build/lily}
question="What is 12 + 30?"

if [ -f models/mini/config.json ]; then
    model=models/mini
    echo "start: the model is $model, a small demonstration of 13 million parameters: it chats, adds, knows some"
    echo "start: facts and calls tools, and is no more than that. README.md says how to get the real one."
else
    model=synth:mini
    echo "start: models/mini is missing: the model is made of random numbers, so its words mean nothing."
fi
echo
echo "> $question"
"$lily" generate -m "$model" -p "$question" --no-think --temp 0 --max-tokens 60
echo
if [ -t 0 ] && [ -t 1 ]; then
    exec "$lily" chat -m "$model"
fi
echo "start: go on with  $lily chat  or  $lily generate -p \"Your question\""

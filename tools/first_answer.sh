#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# first_answer.sh - what ./start shows behind the build: one answered question, then the server with its
# page and a first request. LILY names the program (default build/lily), LILY_PORT the port (8080).
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
port=${LILY_PORT:-8080}
echo "start: serving it; the page is http://127.0.0.1:$port/ and a first request, in another terminal:"
echo
echo "curl -s http://127.0.0.1:$port/v1/chat/completions -H 'Content-Type: application/json' -d '{\"messages\": [{\"role\": \"user\", \"content\": \"What is the capital of France?\"}]}'"
echo
echo "start: for a conversation on the terminal: $lily chat. Ctrl-C ends the server."
exec "$lily" serve -m "$model" --port "$port"

# lily: `make help` lists the targets.
#
# Variables: CC, BUILD (output folder), SAN (sanitizers, e.g. SAN=address,undefined), O (optimisation).

ifeq ($(origin CC),default)
CC := gcc
endif
BUILD ?= build
O ?= -O2
SAN ?=
PREFIX ?= /usr/local
DESTDIR ?=
VERSION := $(shell cat VERSION)
COMMIT := $(shell git rev-parse --short=10 HEAD 2>/dev/null || echo unknown)
PYTHON ?= python3

PACKAGES := jansson nettle libxxhash libmicrohttpd libcurl
CLI_PACKAGES := libedit
PKG_CFLAGS := $(shell pkg-config --cflags $(PACKAGES))
PKG_LIBS := $(shell pkg-config --libs $(PACKAGES))

WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef \
            -Wpointer-arith -Wwrite-strings
CFLAGS += -std=c17 $(O) -g $(WARNINGS) -ffp-contract=off -fno-omit-frame-pointer -MMD -MP
CPPFLAGS += -Isrc -I$(BUILD)/gen $(PKG_CFLAGS)
LDLIBS += $(PKG_LIBS) -lpthread -lm
ifneq ($(SAN),)
CFLAGS += -fsanitize=$(SAN) -fno-sanitize-recover=all
LDFLAGS += -fsanitize=$(SAN)
endif

SOURCES := $(filter-out src/cli/main.c,$(sort $(wildcard src/*/*.c src/*/*/*.c src/*/*/*/*.c)))
ifeq ($(findstring x86_64,$(shell $(CC) -dumpmachine)),) # other machines lack the columns
SOURCES := $(filter-out src/backend/cpu/avx512/% src/backend/cpu/amx/%,$(SOURCES))
else # tests that run the amx column a second time, on emulated tiles
AMX_TESTS := $(patsubst %,$(BUILD)/tests/%_amx,test_cpu_matmul test_cpu_attn test_cpu_recur test_cpu_equal test_cpu_oracle)
endif
OBJECTS := $(SOURCES:%.c=$(BUILD)/%.o)
UNIT_TESTS := $(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(sort $(wildcard tests/unit/test_*.c))) $(AMX_TESTS)
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(sort $(wildcard tests/fuzz/fuzz_*.c)))

.DEFAULT_GOAL := all
include cuda.mk

.PHONY: always all help check check-all unit clean fuzz fuzz-replay format tree bench-text
all: $(BUILD)/lily

help:
	@echo "make              build $(BUILD)/lily"
	@echo "make check        the whole test suite (what ./check runs after set-up)"
	@echo "make check-all    the same with the long sizes"
	@echo "make unit         build and run the unit tests alone"
	@echo "make fuzz         build the libFuzzer targets (needs clang) into $(BUILD)/fuzz"
	@echo "make bench-text   tokenizer speed beside the tokenizers package"
	@echo "make bench-serve  the server over HTTP: speed, gaps, processor time, load"
	@echo "make compare      llama.cpp and ik_llama.cpp built, run in turn with lily (COMPARE='--layers 8')"
	@echo "make soak         10,000 mixed requests; memory must stay flat"
	@echo "make format       clang-format the tree"
	@echo "make tree         layer check, format check, line caps"
	@echo "make library      the C library as it is installed: $(BUILD)/$(SONAME), $(BUILD)/install"
	@echo "make docs         manual page and shell completions into $(BUILD)/doc"
	@echo "make install      DESTDIR and PREFIX are honoured"
	@echo "make dist         $(DIST)/$(DIST_NAME): runs where there is a C library and nothing else"
	@echo "make device       what tools/device_check.sh runs on a machine with a card"
	@echo "make clean        remove $(BUILD)"

# Folder flags: kernels are compiled for exactly the instruction set of their column.
$(BUILD)/src/backend/cpu/generic/%.o: CFLAGS += -O3
AVX512_CFLAGS := -O3 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512bf16
$(BUILD)/src/backend/cpu/avx512/%.o: CFLAGS += $(AVX512_CFLAGS)
$(BUILD)/src/backend/cpu/amx/%.o: CFLAGS += $(AVX512_CFLAGS) -mamx-tile -mamx-bf16 -mamx-int8

# The server's page and API description as C strings.
$(BUILD)/gen/page_html.h: src/server/page.html Makefile
	@mkdir -p $(@D)
	@{ echo '#define PAGE_HTML \'; sed -e 's/[\\"]/\\&/g' -e 's/.*/    "&\\n" \\/' $<; echo '    ""'; } >$@
$(BUILD)/gen/openapi_json.h: src/server/openapi.json Makefile
	@mkdir -p $(@D)
	@{ echo '#define OPENAPI_JSON \'; sed -e 's/[\\"]/\\&/g' -e 's/.*/    "&\\n" \\/' $<; echo '    ""'; } >$@
$(BUILD)/src/server/routes.o: $(BUILD)/gen/page_html.h $(BUILD)/gen/openapi_json.h

$(BUILD)/src/%.o: src/%.c Makefile
	@mkdir -p $(@D)
	@echo "  cc $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/src/cli/%.o: CPPFLAGS += -DLILY_VERSION='"$(VERSION)"' -DLILY_COMMIT='"$(COMMIT)"'

# What names the commit: a new one makes no file of src newer.
$(patsubst %,$(BUILD)/src/cli/%.o,main bench_json bench_serve): $(BUILD)/gen/commit
$(BUILD)/gen/commit: always
	@mkdir -p $(@D)
	@echo $(COMMIT) | cmp -s - $@ || echo $(COMMIT) >$@

$(BUILD)/liblily.a: $(OBJECTS)
	@rm -f $@
	@ar rcs $@ $^

$(BUILD)/lily: $(BUILD)/src/cli/main.o $(BUILD)/liblily.a
	@echo "  link $@"
	@$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

$(BUILD)/tests/%: tests/unit/%.c $(BUILD)/liblily.a Makefile
	@mkdir -p $(@D)
	@echo "  cc $<"
	@$(CC) $(CPPFLAGS) -Itests/unit $(CFLAGS) $(LDFLAGS) -o $@ $< $(BUILD)/liblily.a -lcmocka $(LDLIBS)

# The files of the amx column on emulated tiles, and the choice of it; they stand before the library.
AMX_EMU_OBJECTS := $(patsubst src/backend/cpu/%.c,$(BUILD)/amx-emu/%.o,$(filter src/backend/cpu/amx/%,$(SOURCES)) \
    src/backend/cpu/cpu_features.c)
$(BUILD)/amx-emu/amx/%.o: CFLAGS += $(AVX512_CFLAGS)
$(BUILD)/amx-emu/%.o: src/backend/cpu/%.c Makefile
	@mkdir -p $(@D)
	@echo "  cc $< (emulated tiles)"
	@$(CC) $(CPPFLAGS) -DLILY_AMX_EMU -Itests/emu $(CFLAGS) -c -o $@ $<
$(AMX_TESTS): $(AMX_EMU_OBJECTS) # not files on the way, which make removes
$(BUILD)/tests/%_amx: tests/unit/%.c $(AMX_EMU_OBJECTS) $(BUILD)/liblily.a Makefile
	@mkdir -p $(@D)
	@echo "  cc $< (emulated tiles)"
	@$(CC) $(CPPFLAGS) -Itests/unit $(CFLAGS) $(LDFLAGS) -o $@ $< $(AMX_EMU_OBJECTS) $(BUILD)/liblily.a -lcmocka $(LDLIBS)

$(BUILD)/replay/%: tests/fuzz/%.c tests/fuzz/replay.c $(BUILD)/liblily.a Makefile
	@mkdir -p $(@D)
	@echo "  cc $<"
	@$(CC) $(CPPFLAGS) -Itests/fuzz $(CFLAGS) $(LDFLAGS) -o $@ $< tests/fuzz/replay.c $(BUILD)/liblily.a $(LDLIBS)

unit: $(UNIT_TESTS)
	@set -e; for t in $(UNIT_TESTS); do echo "== $$t"; $$t; done

fuzz-replay: $(FUZZERS:%=$(BUILD)/replay/%)
	@set -e; for f in $(FUZZERS); do $(BUILD)/replay/$$f tests/fuzz/corpus/$$f; done

fuzz:
	$(MAKE) CC=clang BUILD=$(BUILD)/fuzz SAN=address,undefined,fuzzer-no-link $(BUILD)/fuzz/liblily.a
	@set -e; for f in $(FUZZERS); do echo "clang $$f"; clang $(CPPFLAGS) -Itests/fuzz -std=c17 -g -O1 \
	    -fsanitize=address,undefined,fuzzer -o $(BUILD)/fuzz/$$f tests/fuzz/$$f.c $(BUILD)/fuzz/liblily.a $(LDLIBS); done

check:
	$(PYTHON) tools/check.py

check-all:
	$(PYTHON) tools/check.py --long

# The family's whole tokenizer, unpacked for tests and bench-text.
TOKENIZER_DATA := build/data/qwen36/tokenizer.json
$(TOKENIZER_DATA): tools/unpack_tokenizer.py $(wildcard tests/data/qwen36/*.json) tests/data/qwen36/merges.txt.xz
	$(PYTHON) tools/unpack_tokenizer.py build/data

$(BUILD)/bench_text: bench/bench_text.c $(BUILD)/liblily.a Makefile
	@echo "  cc $<"
	@$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< $(BUILD)/liblily.a $(LDLIBS)

bench-text: $(BUILD)/bench_text $(TOKENIZER_DATA)
	$(PYTHON) bench/bench_text.py --program $(BUILD)/bench_text

.PHONY: bench-serve soak compare
bench-serve: $(BUILD)/lily
	$(PYTHON) bench/bench_serve.py --program $(BUILD)/lily

soak: $(BUILD)/lily
	$(PYTHON) bench/soak.py --program $(BUILD)/lily

compare: $(BUILD)/lily
	$(PYTHON) bench/compare/compare.py --lily $(BUILD)/lily $(COMPARE)

format:
	clang-format -i $(shell git ls-files --cached --others --exclude-standard '*.c' '*.h' '*.cu' '*.cuh')

tree:
	$(PYTHON) tools/tree_check.py

clean:
	rm -rf $(BUILD)

# ---- the C library, manual page, completions, installation ----

# Objects serve the program, the archive and the shared library alike.
CFLAGS += -fPIC -fvisibility=hidden
NVCCFLAGS += -Xcompiler -fPIC,-fvisibility=hidden
CPPFLAGS += -Iinclude
CLI_CFLAGS := $(shell pkg-config --cflags $(CLI_PACKAGES))
$(BUILD)/src/api/%.o: CPPFLAGS += -DLILY_VERSION='"$(VERSION)"'
$(BUILD)/src/cli/%.o: CPPFLAGS += $(CLI_CFLAGS)
$(BUILD)/lily: LDLIBS += $(shell pkg-config --libs $(CLI_PACKAGES))

SONAME := liblily.so.0
LIB_PACKAGES := jansson nettle libxxhash
LIB_LDLIBS = $(shell pkg-config --libs $(LIB_PACKAGES)) $(filter-out $(PKG_LIBS),$(LDLIBS))
LIB_OBJECTS := $(filter-out $(BUILD)/src/cli/% $(BUILD)/src/server/%,$(OBJECTS))
DOCS := $(BUILD)/doc/lily.1 $(BUILD)/doc/lily.bash $(BUILD)/doc/_lily $(BUILD)/doc/lily.fish

$(BUILD)/$(SONAME): $(LIB_OBJECTS) src/api/lily.map
	@echo "  link $@"
	@$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=src/api/lily.map \
	    $(if $(SAN),,-Wl,--no-undefined) -o $@ $(LIB_OBJECTS) $(LIB_LDLIBS)

# The installed archive shows the public names alone: one object with the others made local.
$(BUILD)/install/liblily.a: $(LIB_OBJECTS)
	@mkdir -p $(@D)
	@rm -f $@
	@ld -r -o $(@D)/lily.o $(LIB_OBJECTS)
	@objcopy -w --keep-global-symbol='lily_*' $(@D)/lily.o
	@ar rcs $@ $(@D)/lily.o
	@rm -f $(@D)/lily.o

$(BUILD)/install/lily.pc: Makefile VERSION
	@mkdir -p $(@D)
	@printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$${prefix}/lib' 'includedir=$${prefix}/include' '' \
	    'Name: lily' 'Description: inference for Qwen3.5/3.6 mixture-of-experts models' \
	    'Version: $(VERSION)' 'Libs: -L$${libdir} -llily' \
	    'Libs.private: $(LIB_LDLIBS)' 'Cflags: -I$${includedir}' >$@

$(BUILD)/doc/lily.1 $(BUILD)/doc/lily.bash $(BUILD)/doc/_lily $(BUILD)/doc/lily.fish: $(BUILD)/lily
	@mkdir -p $(@D)
	@$(BUILD)/lily docs $(patsubst lily.1,man,$(patsubst lily.bash,bash,$(patsubst _lily,zsh,$(patsubst lily.fish,fish,$(@F))))) >$@.part
	@mv $@.part $@

.PHONY: install install-files library docs
library: $(BUILD)/$(SONAME) $(BUILD)/install/liblily.a
docs: $(DOCS)

install: $(BUILD)/lily library docs
	@rm -f $(BUILD)/install/lily.pc # the prefix may be another one than last time
	@$(MAKE) --no-print-directory install-files

install-files: $(BUILD)/install/lily.pc
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/pkgconfig include share/man/man1 share/doc/lily \
	    share/bash-completion/completions share/zsh/site-functions share/fish/vendor_completions.d)
	install -m 755 $(BUILD)/lily $(DESTDIR)$(PREFIX)/bin/lily
	install -m 644 include/lily.h $(DESTDIR)$(PREFIX)/include/lily.h
	install -m 644 $(BUILD)/install/liblily.a $(DESTDIR)$(PREFIX)/lib/liblily.a
	install -m 755 $(BUILD)/$(SONAME) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/liblily.so
	install -m 644 $(BUILD)/install/lily.pc $(DESTDIR)$(PREFIX)/lib/pkgconfig/lily.pc
	install -m 644 $(BUILD)/doc/lily.1 $(DESTDIR)$(PREFIX)/share/man/man1/lily.1
	install -m 644 $(BUILD)/doc/lily.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/lily
	install -m 644 $(BUILD)/doc/_lily $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_lily
	install -m 644 $(BUILD)/doc/lily.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/lily.fish
	install -m 644 LICENSE examples/chat.c $(DESTDIR)$(PREFIX)/share/doc/lily/
	sed 's|/usr/local|$(PREFIX)|g' tools/lily.service >$(BUILD)/install/lily.service
	install -D -m 644 $(BUILD)/install/lily.service $(DESTDIR)$(PREFIX)/lib/systemd/system/lily.service
	[ ! -f models/mini/config.json ] || { install -d $(DESTDIR)$(PREFIX)/share/lily/mini && \
	    install -m 644 models/mini/* $(DESTDIR)$(PREFIX)/share/lily/mini/; }
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" != 0 ] || ! command -v ldconfig >/dev/null || ldconfig # programs find the library

# ---- a folder that needs a C library alone ----

DIST ?= $(BUILD)/dist
DIST_NAME := lily-$(VERSION)-$(shell uname -s | tr A-Z a-z)-$(shell uname -m)

# Its libraries are those beside it, and the libraries of those: the older of the two kinds of path.
$(BUILD)/dist/lily: $(BUILD)/src/cli/main.o $(BUILD)/liblily.a
	@mkdir -p $(@D)
	@echo "  link $@"
	@$(CC) $(CFLAGS) $(LDFLAGS) -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib' -o $@ $^ $(LDLIBS)
$(BUILD)/dist/lily: LDLIBS += $(shell pkg-config --libs $(CLI_PACKAGES))

.PHONY: dist
dist: $(BUILD)/dist/lily
	@$(PYTHON) tools/dist.py $< $(DIST)/$(DIST_NAME)

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)

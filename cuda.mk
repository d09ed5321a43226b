# The CUDA backend: included by the Makefile behind its lists of sources and tests.
#
# CUDA=0 turns it off; CUDA_HOME names the toolkit (its bin/nvcc, include, lib64). Without an nvcc of
# 12.4 or newer the build goes on without the backend. The runtime is linked statically and loads
# the driver's library when a device is asked for, so the binary also runs where there is none.
#
# For every machine: the same kernels compiled for the CPU (tests/emu), so that their tests run
# where there is no card.

CUDA ?= 1
ifeq ($(origin NVCC),undefined) # made at once: CUDA_HOME, where nobody gave it, comes from it
NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc 2>/dev/null) \
        $(wildcard /usr/local/cuda/bin/nvcc))
endif
CUDA_VERSION := $(if $(NVCC),$(shell $(NVCC) --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p'))
CUDA_IS_GOOD := $(shell set -- $(CUDA_VERSION) 0 0; [ $$1 -gt 12 ] || { [ $$1 -eq 12 ] && [ $$2 -ge 4 ]; } && echo 1)
CUDA_KERNELS := $(sort $(wildcard src/backend/cuda/*.cu))
CUDA_HOSTS := $(sort $(wildcard src/backend/cuda/*.c))
CUDA_HEADERS := $(wildcard src/backend/cuda/*.h src/backend/cuda/*.cuh)

ifneq ($(CUDA),0)
ifeq ($(CUDA_IS_GOOD),1)
HAS_CUDA := 1
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
CUDA_ARCH ?= -gencode arch=compute_90a,code=sm_90a -gencode arch=compute_80,code=compute_80
# The host compiler of nvcc must be a g++; contraction is off, as in the C kernels.
# CUDA_TRACE=1: kernels note when they begin (bench_cuda --trace); for measuring, not for use.
ifeq ($(CUDA_TRACE),1)
CPPFLAGS += -DLILY_CUDA_TRACE
NVCCFLAGS += -DLILY_CUDA_TRACE
endif
NVCCFLAGS += $(if $(findstring code=sm_90a,$(CUDA_ARCH)),-DLILY_HAS_SM90A) # the sm90a column is there
NVCCFLAGS += -std=c++17 -O3 -fmad=false -lineinfo -Isrc $(CUDA_ARCH) -Xcompiler -Wall,-Wextra,-fno-omit-frame-pointer
CPPFLAGS += -DLILY_HAS_CUDA -isystem $(CUDA_HOME)/include
OBJECTS += $(CUDA_KERNELS:%.cu=$(BUILD)/%.o)
LDLIBS += $(firstword $(wildcard $(CUDA_HOME)/lib64/libcudart_static.a $(CUDA_HOME)/lib/libcudart_static.a)) -lstdc++ -ldl -lrt

$(BUILD)/src/backend/cuda/%.o: src/backend/cuda/%.cu $(CUDA_HEADERS) cuda.mk
	@mkdir -p $(@D)
	$(NVCC) $(NVCCFLAGS) -c -o $@ $<

$(BUILD)/bench_cuda: bench/bench_cuda.c bench/bench_products.c $(BUILD)/liblily.a
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a,$^) $(LDLIBS)

$(BUILD)/bench_cuda_recur: bench/bench_cuda_recur.c $(BUILD)/liblily.a
	$(CC) $(CPPFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $(filter %.c %.a,$^) $(LDLIBS)

# What tools/device_check.sh runs, with its shared libraries: to be copied to a machine with a card.
DEVICE_PROGRAMS := $(addprefix $(BUILD)/,lily tests/test_cuda_device bench_cuda bench_cuda_recur)
.PHONY: device
device: $(DEVICE_PROGRAMS)
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/trace CUDA_TRACE=1 $(BUILD)/trace/bench_cuda $(BUILD)/trace/bench_cuda_recur
	@$(PYTHON) tools/dist.py --device $(BUILD) $(DEVICE_PROGRAMS)
endif
endif

# ---- the same kernels on the CPU ----

EMU := $(BUILD)/emu
EMU_CXX ?= g++
EMU_OBJECTS := $(CUDA_KERNELS:%.cu=$(EMU)/%.cu.o) $(CUDA_HOSTS:%.c=$(EMU)/%.o) $(EMU)/src/backend/backend.o $(EMU)/cuda_emu.o
EMU_FLAGS := -O3 -g -Itests/emu -Isrc -DLILY_HAS_CUDA -DLILY_CUDA_EMU -ffp-contract=off -fno-strict-aliasing $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all)
EMU_DEPENDS := $(CUDA_HEADERS) $(wildcard tests/emu/*.h) cuda.mk

$(EMU)/%.cu.o: %.cu $(EMU_DEPENDS)
	@mkdir -p $(@D)
	$(EMU_CXX) -std=c++17 $(EMU_FLAGS) -Wall -Wextra -Werror -Wno-unknown-pragmas -x c++ -c -o $@ $<

$(EMU)/cuda_emu.o: tests/emu/cuda_emu.cpp $(EMU_DEPENDS)
	@mkdir -p $(@D)
	$(EMU_CXX) -std=c++17 $(EMU_FLAGS) -Wall -Wextra -Werror -Wno-unknown-pragmas -c -o $@ $<

$(EMU)/src/backend/%.o: src/backend/%.c $(EMU_DEPENDS)
	@mkdir -p $(@D)
	$(CC) -Itests/emu -DLILY_CUDA_EMU -DLILY_HAS_CUDA $(CPPFLAGS) $(CFLAGS) -c -o $@ $<

$(BUILD)/tests/test_cuda_emu: tests/unit/test_cuda_emu.c $(wildcard tests/unit/cuda_*_checks.h) tests/unit/cuda_checks.h $(EMU_OBJECTS) $(BUILD)/liblily.a
	@mkdir -p $(@D)
	$(CC) -Itests/emu -DLILY_CUDA_EMU $(CPPFLAGS) -Itests/unit $(CFLAGS) $(LDFLAGS) -o $@ $< $(EMU_OBJECTS) $(BUILD)/liblily.a -lcmocka $(LDLIBS) -lstdc++

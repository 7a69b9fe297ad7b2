# Crossed for 64-bit Arm.
# For 64-bit Arm: everything is crossed, and run by qemu-user, tenfold slower, what is about kernels: each against fixtures
# and scalar, the same bits whatever the split, hashes of logits. What depends on no set runs on this machine alone, and
# whole models in any company (ARM_TESTS=%/bits_test) take minutes more. The first line is a chip without dot products,
# where scalar is the only set. QEMU_CPU=neoverse-n1 has no matrix products.
ARM := aarch64-linux-gnu
ARM_ROOT := build/arm64-root
ARM_LIBS := $(ARM_ROOT)/usr/lib/$(ARM)
ARM_PATH := $(ARM_LIBS):$(ARM_ROOT)/lib/$(ARM)
arm64:
	$(call need,$(ARM)-gcc,gcc-$(ARM) libc6-dev-arm64-cross)
	$(call need,qemu-aarch64,qemu-user)
	$(Q)tools/arm64-root $(ARM_ROOT)
	$(Q)PKG_CONFIG_LIBDIR='$(CURDIR)/$(ARM_LIBS)/pkgconfig' PKG_CONFIG_SYSROOT_DIR='$(CURDIR)/$(ARM_ROOT)' \
	  $(MAKE) --no-print-directory VARIANT=arm64 CC=$(ARM)-gcc \
	  CPPFLAGS='$(CPPFLAGS) -I$(ARM_ROOT)/usr/include/$(ARM)' LDFLAGS='-L$(ARM_LIBS) -Wl,-rpath-link,$(ARM_PATH)' test-arm64
ARM_TESTS ?= $(B)/src/device/cpu/kernels/%_test %/kernel_check_test %/threads_test %/array_test %/hashes_test
test-arm64: export RUN_UNDER := qemu-aarch64 -L /usr/$(ARM) -E LD_LIBRARY_PATH=$(ARM_PATH)
test-arm64: all $(B)/src/device/cpu/kernels/matmul/matmul_test $(filter $(ARM_TESTS),$(TESTS))
	$(Q)QEMU_CPU=cortex-a53 tests/run $(B)/src/device/cpu/kernels/matmul/matmul_test
	$(Q)tests/run $(filter $(ARM_TESTS),$(TESTS))
$(if $(filter arm64,$(VARIANT)),$(B)/tests/engine/bits_test.o: FLAGS += -DQN_EMULATED)
.PHONY: arm64 test-arm64

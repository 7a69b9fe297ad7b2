# The larger golden fixtures, made again: tools/fixtures/README.md. Afterwards QUERN_FIXTURES=$(DIR) make test.
DIR ?= build/fixtures
FIXTURES_PYTHON ?= python3
fixtures:
	$(Q)$(FIXTURES_PYTHON) tools/fixtures $(DIR) $(ONLY)
.PHONY: fixtures

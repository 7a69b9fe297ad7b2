/* Sizes that storeys above and below the devices agree on. The kernels read this header too. */
#ifndef QN_PRIM_UNITS_H
#define QN_PRIM_UNITS_H

/* Tokens in one page of keys and values: the unit of block tables, of qn_state and of attention's kernels. */
enum { QN_PAGE_TOKENS = 32 };

/* Numbers in one block of a long row, such as a row of logits: maxima and sums are taken block by block. */
enum { QN_ROW_BLOCK = 256 };

#endif

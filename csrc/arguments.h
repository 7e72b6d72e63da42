// What the operations share: tensors to arguments of the kernels, and checks of what tables hold.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>

#include "kernels.h"
#include "tensor.h"

namespace wavecore {

Modulation modulation(const Tensor& tensor);
Rows rows(const Tensor& tensor);
Pages pages(const Tensor& tensor);

// [s, f, D] for x [s, t, D], in the dtype of x or float32.
bool modulates(const Tensor& modulation, const Tensor& x);
bool is_like(const Tensor& tensor, const Tensor& other, std::initializer_list<int64_t> sizes);
bool is_ids(const Tensor& tensor, std::initializer_list<int64_t> sizes);

// "page ids from 0 to 4", for the messages of errors.
std::string range(int64_t first, int64_t count, const char* what);

void check_page_ids(const char* name, const Tensor& ids, int64_t page_count);
// Checks lengths, and ids of pages that are read; returns the keys of all slots.
int64_t check_context(const Tensor& table, const Tensor& lengths, int64_t page_count, int64_t page_tokens);

// Into how many blocks the queries of each of `heads` heads of all slots are cut. Those of a block share one packing
// of the context; more blocks than that needs give every thread some.
int64_t query_blocks(const Kernels& kernels, int64_t queries, int64_t heads, int threads);

// Calls of a kernel, split over threads. `query_block` of the attention is chosen here; `keys` are those of all slots.
void run_linear(const Kernels& kernels, const LinearArgs& args, int threads);
void run_attention(const Kernels& kernels, PagedAttentionArgs args, int64_t slots, int64_t keys, int threads);

// Memory for one thread, kept from call to call so that large blocks are not mapped and unmapped each time.
float* thread_scratch(int64_t floats);

}  // namespace wavecore

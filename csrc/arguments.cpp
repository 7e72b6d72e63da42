#include "arguments.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "parallel.h"

namespace wavecore {

Modulation modulation(const Tensor& tensor) {
  return {tensor.data(), tensor.stride(0), tensor.stride(1), tensor.dtype()};
}

Rows rows(const Tensor& tensor) { return {tensor.data(), tensor.stride(0), tensor.stride(1)}; }

Pages pages(const Tensor& tensor) { return {tensor.data(), tensor.stride(0), tensor.stride(1), tensor.stride(2)}; }

bool modulates(const Tensor& modulation, const Tensor& x) {
  int64_t tokens = x.size(1), frames = modulation.size(1);
  return modulation.is({x.size(0), Tensor::kAny, x.size(2)}) &&
         (modulation.dtype() == x.dtype() || modulation.dtype() == DType::float32) &&
         (tokens == 0 || (frames > 0 && tokens % frames == 0));
}

bool is_like(const Tensor& tensor, const Tensor& other, std::initializer_list<int64_t> sizes) {
  return tensor.is(sizes) && tensor.dtype() == other.dtype();
}

bool is_ids(const Tensor& tensor, std::initializer_list<int64_t> sizes) {
  return tensor.is(sizes) && tensor.dtype() == DType::int32;
}

std::string range(int64_t first, int64_t count, const char* what) {
  return std::string(what) + " from " + std::to_string(first) + " to " + std::to_string(count - 1);
}

void check_page_ids(const char* name, const Tensor& ids, int64_t page_count) {
  const int32_t* data = ids.data<const int32_t>();
  for (int64_t i = 0; i < ids.elements(); ++i)
    if (data[i] < -1 || data[i] >= page_count)
      throw ArgumentError(name, range(-1, page_count, "page ids"), std::to_string(data[i]));
}

int64_t check_context(const Tensor& table, const Tensor& lengths, int64_t page_count, int64_t page_tokens) {
  const int32_t* ids = table.data<const int32_t>();
  const int32_t* valid = lengths.data<const int32_t>();
  int64_t keys = 0;
  for (int64_t i = 0; i < table.elements(); ++i) {
    if (valid[i] < 0 || valid[i] > page_tokens)
      throw ArgumentError("page_lengths", range(0, page_tokens + 1, "lengths"), std::to_string(valid[i]));
    if (valid[i] && (ids[i] < 0 || ids[i] >= page_count))
      throw ArgumentError("page_table", range(0, page_count, "page ids") + " where the length is not 0",
                          std::to_string(ids[i]));
    keys += valid[i];
  }
  return keys;
}

int64_t query_blocks(const Kernels& kernels, int64_t queries, int64_t heads, int threads) {
  constexpr int64_t kFewestQueries = 96;  // below, packing takes a fifth of the time
  constexpr int64_t kBlocksPerThread = 4;
  int64_t blocks = (queries + kernels.most_queries - 1) / kernels.most_queries;
  int64_t wanted = (kBlocksPerThread * threads + heads - 1) / heads;
  return std::max(blocks, std::min(wanted, queries / kFewestQueries));
}

void run_linear(const Kernels& kernels, const LinearArgs& args, int threads) {
  int64_t items = kernels.linear_items(args), scratch = kernels.linear_scratch(args);
  // Four multiply-adds take about as long as a number of an element-wise pass.
  double cost = double(args.rows) * double(args.outputs) * double(args.inputs) / 4 / double(items);
  parallel_for(items, cost, threads, [&](int64_t begin, int64_t end) {
    kernels.linear(args, begin, end, thread_scratch(scratch));
  });
}

void run_attention(const Kernels& kernels, PagedAttentionArgs args, int64_t slots, int64_t keys, int threads) {
  int64_t blocks = query_blocks(kernels, args.queries, slots * args.heads, threads);
  args.query_block = (args.queries + blocks - 1) / blocks;
  int64_t scratch = kernels.paged_attention_scratch(args);
  double cost = double(args.queries) / double(blocks) * double(keys) / double(slots) * double(args.head_dim) / 4;
  parallel_for(slots * args.heads * blocks, cost, threads, [&](int64_t begin, int64_t end) {
    kernels.paged_attention(args, begin, end, thread_scratch(scratch));
  });
}

float* thread_scratch(int64_t floats) {
  thread_local std::unique_ptr<float, decltype(&std::free)> memory(nullptr, &std::free);
  thread_local int64_t capacity = 0;
  if (capacity < floats) {
    size_t bytes = (static_cast<size_t>(floats) * sizeof(float) + 63) / 64 * 64;
    memory.reset(static_cast<float*>(std::aligned_alloc(64, bytes)));
    if (!memory) {
      capacity = 0;
      throw std::bad_alloc();
    }
    capacity = floats;
  }
  return memory.get();
}

}  // namespace wavecore

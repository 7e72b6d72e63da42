// Blocks of keys and values of the contexts that a thread attends to, one ahead of what is computed.
#pragma once

#include "panel.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kKeyBlock = 192;  // keys and values of 128 floats of a block fit a second-level cache of 512 KB
static_assert(kKeyBlock % kPanel == 0, "a block is whole panels");

// Rows of keys and values, and how many of them have been fetched from memory.
template <typename T>
struct KeyBlock {
  const T* k[kKeyBlock];
  const T* v[kKeyBlock];
  int64_t keys = 0;
  int64_t fetched = 0;

  void fetch(int64_t rows, int64_t head_dim) {
    for (int64_t end = fetched + rows; fetched < end && fetched < keys; ++fetched) {
      prefetch_row<2>(k[fetched], head_dim);
      prefetch_row<2>(v[fetched], head_dim);
    }
  }
};

// Walks the valid tokens of contexts in attention order. `now` is the block to compute; `then` the one after it, of
// the same context or the first of the next, so that it can be fetched meanwhile.
template <typename T>
class KeyBlocks {
 public:
  KeyBlocks(const PagedAttentionArgs& args, int64_t begin, int64_t end) : a(args), item_(begin), end_(end) {
    start(*now);
  }
  KeyBlocks(const KeyBlocks&) = delete;

  // Looks for the next block; whether it is of the same context.
  bool look_ahead() {
    fill(*then);
    if (then->keys) return true;
    ++item_;
    start(*then);
    return false;
  }
  void advance() {
    KeyBlock<T>* done = now;
    now = then;
    then = done;
  }

  KeyBlock<T>* now = &blocks_[0];
  KeyBlock<T>* then = &blocks_[1];

 private:
  // The first block of a context; empty behind the last.
  void start(KeyBlock<T>& block) {
    block.keys = 0;
    if (item_ >= end_) return;
    int64_t blocks = (a.queries + a.query_block - 1) / a.query_block;
    head_ = item_ / blocks % a.heads;
    first_ = item_ / blocks / a.heads * a.pages_per_slot;
    entry_ = token_ = 0;
    fill(block);
  }

  void fill(KeyBlock<T>& block) {
    block.keys = block.fetched = 0;
    while (block.keys < kKeyBlock && entry_ < a.pages_per_slot) {
      int64_t length = a.page_lengths[first_ + entry_], take = length - token_;
      if (take > kKeyBlock - block.keys) take = kKeyBlock - block.keys;
      if (take > 0) {
        const T* k = row(a.k_pages);
        const T* v = row(a.v_pages);
        for (int64_t i = 0; i < take; ++i) {
          block.k[block.keys + i] = k + i * a.k_pages.token_stride;
          block.v[block.keys + i] = v + i * a.v_pages.token_stride;
        }
        block.keys += take;
        token_ += take;
      }
      if (token_ >= length) {
        ++entry_;
        token_ = 0;
      }
    }
  }

  const T* row(const Pages& pages) const {
    return static_cast<const T*>(pages.data) + a.page_table[first_ + entry_] * pages.page_stride +
           token_ * pages.token_stride + head_ * pages.head_stride;
  }

  KeyBlock<T> blocks_[2];
  const PagedAttentionArgs& a;
  int64_t item_, end_, head_ = 0;
  int64_t first_ = 0, entry_ = 0, token_ = 0;  // of the slot's row of the table; within it; within the page
};

}  // namespace wavecore::WAVECORE_ISA

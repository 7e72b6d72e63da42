// The context of a block of queries in groups of 32 keys of one page, and what is fetched of it from memory ahead of
// its packing.
#pragma once

#include "amx_strips.h"
#include "panel.h"

namespace wavecore::WAVECORE_ISA {

struct QueryBlock {
  int64_t slot, head, first, rows;

  QueryBlock(const PagedAttentionArgs& a, int64_t item) {
    int64_t blocks = (a.queries + a.query_block - 1) / a.query_block;
    first = item % blocks * a.query_block, head = item / blocks % a.heads, slot = item / blocks / a.heads;
    rows = a.queries - first < a.query_block ? a.queries - first : a.query_block;
  }
};

// Stands at a group, or behind the last one.
class GroupWalk {
 public:
  GroupWalk(const PagedAttentionArgs& a, const QueryBlock& block)
      : a_(&a), head_(block.head), entry_(block.slot * a.pages_per_slot), end_(entry_ + a.pages_per_slot) {
    skip_empty_pages();
  }

  bool more() const { return entry_ < end_; }
  int64_t page() const { return a_->page_table[entry_]; }
  int64_t length() const { return a_->page_lengths[entry_]; }  // valid tokens of the page
  int64_t token() const { return token_; }                     // first one of the group within the page
  int64_t keys() const { return length() - token_ < kGroup ? length() - token_ : kGroup; }

  // First row of the group, of keys or values.
  template <typename T>
  const T* rows(const Pages& pages) const {
    return static_cast<const T*>(pages.data) + page() * pages.page_stride + token_ * pages.token_stride +
           head_ * pages.head_stride;
  }

  void next() {
    token_ += kGroup;
    if (token_ < length()) return;
    token_ = 0;
    ++entry_;
    skip_empty_pages();
  }

 private:
  void skip_empty_pages() {
    while (more() && length() == 0) ++entry_;
  }

  const PagedAttentionArgs* a_;
  int64_t head_, entry_, end_, token_ = 0;
};

// Keys and values of the block that comes next, into the second-level cache: a share beside the work on each query row.
template <typename K>
class KeysAhead {
 public:
  KeysAhead(const PagedAttentionArgs& a, const GroupWalk& next, int64_t rows)
      : a_(a), walk_(next), share_((kBlockGroups * kGroup + rows - 1) / rows) {}

  void fetch() {
    for (int64_t i = 0; i < share_ && left_ > 0 && walk_.more(); ++i, --left_) {
      prefetch_row<2>(walk_.rows<K>(a_.k_pages) + key_ * a_.k_pages.token_stride, a_.head_dim);
      prefetch_row<2>(walk_.rows<bf16>(a_.v_pages) + key_ * a_.v_pages.token_stride, a_.head_dim);
      if (++key_ < walk_.keys()) continue;
      key_ = 0;
      walk_.next();
    }
  }

 private:
  const PagedAttentionArgs& a_;
  GroupWalk walk_;
  int64_t share_, key_ = 0, left_ = kBlockGroups * kGroup;
};

}  // namespace wavecore::WAVECORE_ISA

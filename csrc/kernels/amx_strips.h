// The products of attention on the matrix units, strip by strip of 32 query rows, in pieces that are put between the
// vector instructions of the softmax: the two kinds of units then work at the same time.
#pragma once

#include "amx_product.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kGroup = 32;       // keys: the depth of a bfloat16 tile
constexpr int64_t kBlockGroups = 16;
// Of a block: with two strips of scores and a block of keys and values 1 MB for heads of 128, half of the second-level
// cache, since two virtual cores may share one.
constexpr int64_t kMostTileQueries = 800;
// Rows of scores and weights are an odd number of cache lines, so that columns spread over the sets of a cache.
constexpr int64_t kScoreRow = kBlockGroups * kGroup + 16;
constexpr int64_t kWeightRow = kBlockGroups * kGroup + 32;

struct AttentionTiles {
  int64_t steps;   // tiles along the depth of queries and keys
  int64_t values;  // numbers of a value, padded
  char* q;         // left tiles [rows / 16][steps]
  char* k;         // right tiles [groups][2][steps]
  char* v;         // right tiles [groups][values / 16]
  float* scores;   // [2][32][kScoreRow], int32 sums in place of floats where keys are int8
  bf16* weights;   // [2][32][kWeightRow]
  float* out;      // [rows][values]
  float* max;      // [rows], the reference of each: see weigh_row
  float* sum;      // [rows]

  // Those of a strip, which it shares with the strips two before and two behind.
  float* strip_scores(int64_t row) const { return scores + row / kSide % 2 * kSide * kScoreRow; }
  bf16* strip_weights(int64_t row) const { return weights + row / kSide % 2 * kSide * kWeightRow; }
};

// Products are queued, at most two kinds at a time, and done in that order.
template <typename ScoreProducts>
class StripProducts {
 public:
  StripProducts(const AttentionTiles& s, int64_t groups) : s_(s), groups_(groups) {}

  // Queries of the strip at `row` with the keys of all groups, to its scores.
  void queue_scores(int64_t row) {
    int64_t strip = s_.steps * kTileBytes;
    push({{s_.q + row / kTile * strip, kTileRow, kTileBytes, strip},
          {s_.k, kTileRow, kTileBytes, strip},
          2 * strip,
          s_.steps,
          groups_,
          reinterpret_cast<char*>(s_.strip_scores(row)),
          kScoreRow * int64_t(sizeof(float)),
          true});
  }

  // Weights of the strip at `row` with the values of all groups, added to its results.
  void queue_values(int64_t row) {
    constexpr int64_t weight_row = kWeightRow * sizeof(bf16);
    push({{s_.strip_weights(row), weight_row, kTileRow, kTile * weight_row},
          {s_.v, kTileRow, s_.values / kTile * kTileBytes, kTileBytes},
          2 * kTileBytes,
          groups_,
          s_.values / kSide,
          reinterpret_cast<char*>(s_.out + row * s_.values),
          s_.values * int64_t(sizeof(float)),
          false});
  }

  // Does as much of what is queued as belongs beside the softmax of one group of a row: a quarter of a step where heads
  // are 128 wide, since a strip has as many groups of rows as quarters then.
  void advance() {
    constexpr int64_t quarters_of_wide_heads = 8;
    for (due_ += s_.steps + s_.values / kSide; due_ >= quarters_of_wide_heads; due_ -= quarters_of_wide_heads) {
      if (count_ == 0) return;
      quarter();
    }
  }

  // Does all of it.
  void finish() {
    while (count_ > 0) quarter();
    due_ = 0;
  }

 private:
  // Products of the same left operand with right ones that follow each other.
  struct Queued {
    Operand left, right;
    int64_t right_next;  // bytes from the right operand of a product to that of the next
    int64_t steps;
    int64_t products;  // that are left
    char* sums;        // rows of kSide sums; those of the next product lie beside them
    int64_t sums_row;
    bool scores;  // else sums are added to
  };

  void push(const Queued& queued) { queue_[count_++] = queued; }

  template <int sums, int left, int right>
  void add(bool scores) {
    if (scores)
      ScoreProducts::template add<sums, left, right>();
    else
      Bfloat16Products::add<sums, left, right>();
  }

  // One of the four products of tiles that make a step.
  void quarter() {
    Queued& now = queue_[0];
    switch (quarter_++) {
      case 0:
        if (step_ == 0) begin(now);
        tile_load<4>(left_, now.left.row);
        tile_load<6>(right_, now.right.row);
        return add<0, 4, 6>(now.scores);
      case 1:
        tile_load<7>(right_ + now.right.second, now.right.row);
        return add<1, 4, 7>(now.scores);
      case 2:
        tile_load<5>(left_ + now.left.second, now.left.row);
        return add<2, 5, 6>(now.scores);
      default:
        add<3, 5, 7>(now.scores);
        quarter_ = 0;
        left_ += now.left.step;
        right_ += now.right.step;
        if (++step_ == now.steps) end(now);
    }
  }

  void begin(const Queued& now) {
    left_ = static_cast<const char*>(now.left.data);
    right_ = static_cast<const char*>(now.right.data);
    if (now.scores)
      zero_sums();
    else
      load_sums(now.sums, now.sums_row);
  }

  void end(Queued& now) {
    store_sums(now.sums, now.sums_row);
    step_ = 0;
    now.sums += kSide * sizeof(float);
    now.right.data = static_cast<const char*>(now.right.data) + now.right_next;
    if (--now.products == 0) {
      queue_[0] = queue_[1];
      --count_;
    }
  }

  const AttentionTiles& s_;
  int64_t groups_;
  Queued queue_[2] = {};
  int64_t count_ = 0;  // queued
  int64_t step_ = 0, quarter_ = 0, due_ = 0;
  const char *left_ = nullptr, *right_ = nullptr;  // of the step
};

}  // namespace wavecore::WAVECORE_ISA

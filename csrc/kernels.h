// Arguments of the CPU kernels and the table of functions that each instruction set provides.
//
// The kernels are compiled once for each instruction set. To keep code of a wide instruction set out of the rest
// of the module, they share plain data only: no inline function and no template of the standard library.
#pragma once

#include <cstdint>

namespace wavecore {

struct bf16 {
  uint16_t bits;
};

struct fp16 {
  uint16_t bits;
};

enum class DType { float32, bfloat16, float16, int32, int8 };

constexpr int64_t kMaxHeadDim = 512;  // of int8 attention, for buffers on the stack

// Strides are in elements; the last dimension has stride 1. Modulations are of the dtype of x or float32.
struct Modulation {
  const void* data;
  int64_t slot_stride;
  int64_t frame_stride;
  DType dtype;
};

struct LayerNormModulateArgs {
  const void* x;
  int64_t x_slot_stride;
  int64_t x_token_stride;
  Modulation shift;
  Modulation scale;
  void* out;  // [s, t, D] contiguous
  int64_t tokens;
  int64_t tokens_per_frame;
  int64_t dim;
  float eps;
  float base;  // added to the scale: 1 of a modulation, 0 of a weight
  DType dtype;
};

struct GateResidualArgs {
  const void* x;
  int64_t x_slot_stride;
  int64_t x_token_stride;
  const void* y;
  int64_t y_slot_stride;
  int64_t y_token_stride;
  Modulation gate;
  void* out;  // [s, t, D] contiguous
  int64_t tokens;
  int64_t tokens_per_frame;
  int64_t dim;
  DType dtype;
};

struct GeluArgs {
  const void* x;
  int64_t x_stride;
  void* out;  // [rows, D] contiguous
  int64_t dim;
  DType dtype;
};

// Rows are latent planes: contiguous in every tensor.
struct RenoiseStepArgs {
  const void* x;
  const void* velocity;
  const void* noise;
  const float* sigma;       // [s, f]
  const float* next_sigma;  // [s, f]
  void* x0;
  void* noised;
  int64_t channels;
  int64_t frames;
  int64_t plane;  // numbers of a row
  DType dtype;
};

struct RmsNormArgs {
  const void* x;
  int64_t x_stride;
  const float* weight;
  void* out;  // [rows, D] contiguous
  int64_t dim;
  float eps;
  DType dtype;
};

struct Pages {
  void* data;
  int64_t page_stride;
  int64_t token_stride;
  int64_t head_stride;
};

struct Rows {
  const void* data;
  int64_t slot_stride;
  int64_t token_stride;
};

struct QkvPageWriteArgs {
  Rows q, k, v;
  const float* q_weight;
  const float* k_weight;
  const float* rope;  // [s, t, d / 2, 2]
  int64_t rope_slot_stride;
  int64_t rope_token_stride;
  Pages k_pages, v_pages, unroped_pages, peer_k_pages, peer_v_pages;
  const int32_t* page_ids;     // [s, pages_per_slot] contiguous
  const int32_t* unroped_ids;  // the same, or null
  const int32_t* peer_ids;     // the same, or null
  void* q_out;                 // [s, t, D] contiguous
  int64_t tokens;
  int64_t page_tokens;
  int64_t pages_per_slot;
  int64_t heads;
  int64_t head_dim;
  float eps;
  DType dtype;
};

struct RopeShiftArgs {
  Pages source;
  Pages target;
  const int32_t* source_ids;
  const int32_t* target_ids;
  const float* rope;  // [m, n, d / 2, 2]
  int64_t rope_page_stride;
  int64_t rope_token_stride;
  int64_t page_tokens;
  int64_t heads;
  int64_t head_dim;
  DType dtype;
};

struct PagedAttentionArgs {
  const void* q;
  int64_t q_slot_stride;
  int64_t q_token_stride;
  int64_t q_head_stride;
  Pages k_pages, v_pages;
  const int32_t* page_table;    // [s, pages_per_slot] contiguous
  const int32_t* page_lengths;  // the same
  void* out;                    // [s, tq, h, d] contiguous
  float* lse;                   // [s, tq, h] contiguous, or null
  int64_t queries;
  int64_t query_block;  // rows of one work item
  int64_t pages_per_slot;
  int64_t heads;
  int64_t head_dim;
  float scale;
  DType dtype;
};

struct LinearArgs {
  const void* x;
  int64_t x_stride;
  const void* weight;  // [outputs, inputs] contiguous, of the dtype of x
  const float* bias;   // or null
  bool gelu;           // of the result, before gate and residual
  Rows residual;       // [s, t, outputs], or null
  Modulation gate;     // [s, f, outputs], or null; only with a residual
  void* out;           // [rows, outputs] contiguous
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
  int64_t tokens_per_slot;
  int64_t tokens_per_frame;
  DType dtype;
};

// Rows to int8 with a scale each, plainly or behind a GELU.
struct QuantizeArgs {
  const void* x;
  int64_t x_stride;
  int8_t* data;  // [rows, D] contiguous
  float* scale;  // [rows]
  int64_t dim;
  bool gelu;
  DType dtype;
};

// The same behind a modulated layer norm, whose `out` is not used.
struct LayerNormModulateQuantizeArgs {
  LayerNormModulateArgs norm;
  int8_t* data;
  float* scale;
};

// Weights are [output channels, padded inputs], zeros in the padding, so that whole vectors can be read.
struct Int8LinearArgs {
  const int8_t* tokens;  // [rows, inputs] contiguous
  const float* token_scale;
  const int8_t* weight;
  int64_t weight_stride;
  const float* channel_scale;
  const float* bias;  // or null
  Rows residual;      // [s, t, outputs], or null
  Modulation gate;    // [s, f, outputs], or null; only with a residual
  void* out;          // [rows, outputs] contiguous
  int64_t rows;
  int64_t inputs;
  int64_t outputs;
  int64_t tokens_per_slot;
  int64_t tokens_per_frame;
  DType dtype;
};

// Keys of whole pages to int8: the mean over the page's tokens is taken off, each token and head has a scale.
struct QuantizeKeyPagesArgs {
  Pages source, data;
  const int32_t* page_ids;      // [m]
  const int32_t* page_lengths;  // [m]
  float* scale;                 // [p, n, h], contiguous within a page
  float* mean;                  // [p, h, d], likewise
  int64_t scale_page_stride;
  int64_t mean_page_stride;
  int64_t page_tokens;
  int64_t heads;
  int64_t head_dim;
  DType dtype;
};

struct PagedAttentionInt8Args {
  PagedAttentionArgs base;  // k_pages are int8
  const float* k_scale;     // [p, n, h], contiguous within a page
  const float* k_mean;      // [p, h, d], likewise
  int64_t scale_page_stride;
  int64_t mean_page_stride;
};

// Each function works on the items [begin, end); items are independent of one another.
struct Kernels {
  const char* name;
  // items: tokens of all slots; scratch of 3 * `dim` floats
  void (*layer_norm_modulate)(const LayerNormModulateArgs&, int64_t begin, int64_t end, float* scratch);
  // items: tokens of all slots
  void (*gate_residual)(const GateResidualArgs&, int64_t begin, int64_t end);
  // items: rows
  void (*rms_norm)(const RmsNormArgs&, int64_t begin, int64_t end);
  // items: rows of the pages of all slots, those that no token fills included
  void (*qkv_page_write)(const QkvPageWriteArgs&, int64_t begin, int64_t end);
  // items: rows of the pages to write
  void (*rope_shift)(const RopeShiftArgs&, int64_t begin, int64_t end);
  // query rows of an attention block: above, queries and results stream from the third-level cache
  int64_t most_queries;
  // items: (slot, head, query block)
  void (*paged_attention)(const PagedAttentionArgs&, int64_t begin, int64_t end, float* scratch);
  int64_t (*paged_attention_scratch)(const PagedAttentionArgs&);  // floats
  // items: (column chunk, row block), see linear_items
  void (*linear)(const LinearArgs&, int64_t begin, int64_t end, float* scratch);
  int64_t (*linear_items)(const LinearArgs&);
  int64_t (*linear_scratch)(const LinearArgs&);  // floats
  // items: rows
  void (*gelu)(const GeluArgs&, int64_t begin, int64_t end);
  // items: (slot, channel, frame)
  void (*renoise_step)(const RenoiseStepArgs&, int64_t begin, int64_t end);
  // items: rows; scratch of `dim` floats
  void (*quantize)(const QuantizeArgs&, int64_t begin, int64_t end, float* scratch);
  // items: tokens of all slots; scratch of 3 * `dim` floats
  void (*layer_norm_modulate_quantize)(const LayerNormModulateQuantizeArgs&, int64_t begin, int64_t end,
                                       float* scratch);
  // items: (column chunk, row block), see int8_linear_items
  void (*int8_linear)(const Int8LinearArgs&, int64_t begin, int64_t end, float* scratch);
  int64_t (*int8_linear_items)(const Int8LinearArgs&);
  int64_t (*int8_linear_scratch)(const Int8LinearArgs&);  // floats
  // items: (page, head)
  void (*quantize_key_pages)(const QuantizeKeyPagesArgs&, int64_t begin, int64_t end, float* scratch);
  // items: (slot, head, query block)
  void (*paged_attention_int8)(const PagedAttentionInt8Args&, int64_t begin, int64_t end, float* scratch);
  int64_t (*paged_attention_int8_scratch)(const PagedAttentionInt8Args&);  // floats
};

const Kernels& portable_kernels();
#if defined(WAVECORE_HAVE_X86)
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& avx512_vnni_kernels();
#endif
#if defined(WAVECORE_HAVE_AMX)
const Kernels& amx_kernels();
#endif

}  // namespace wavecore

// Linear layers, and the operations on int8: quantisation, linear layer, attention.
#include <optional>

#include "arguments.h"
#include "ops.h"
#include "parallel.h"
#include "tensor.h"

namespace wavecore {
namespace {

namespace py = pybind11;

bool is_of(const Tensor& tensor, DType dtype, std::initializer_list<int64_t> sizes) {
  return tensor.dtype() == dtype && tensor.is(sizes);
}

// What a linear layer ends with: bias, gate and residual, for a result [rows, outputs].
class Ending {
 public:
  Ending(py::handle bias, py::handle residual, py::handle gate, const Tensor& out) : rows_(out.size(0)) {
    int64_t outputs = out.size(1);
    require(gate.is_none() || !residual.is_none());
    if (!bias.is_none()) {
      bias_ = Tensor::float32(bias, 1, out.dtype());
      require(bias_->is({outputs}));
    }
    if (residual.is_none()) return;
    if (gate.is_none()) {
      residual_ = Tensor::rows(residual);
      require(is_like(*residual_, out, {rows_, outputs}));
      return;
    }
    residual_ = Tensor::input(residual, 3);
    gate_ = Tensor::input(gate, 3);
    require(residual_->dtype() == out.dtype() && residual_->size(0) * residual_->size(1) == rows_ &&
            residual_->size(2) == outputs && modulates(*gate_, *residual_));
  }

  template <typename Args>
  void fill(Args& args) const {
    args.tokens_per_slot = rows_, args.tokens_per_frame = 1;
    if (bias_) args.bias = bias_->data<const float>();
    if (!residual_) return;
    if (!gate_) {
      args.residual = {residual_->data(), 0, residual_->stride(0)};
      return;
    }
    args.residual = rows(*residual_);
    args.gate = modulation(*gate_);
    args.tokens_per_slot = residual_->size(1);
    if (rows_) args.tokens_per_frame = residual_->size(1) / gate_->size(1);
  }

 private:
  int64_t rows_;
  std::optional<Tensor> bias_, residual_, gate_;
};

}  // namespace

void Operations::quantize_tokens(py::handle x_, py::handle data_, py::handle scale_, bool gelu, int threads) const {
  Tensor x = Tensor::rows(x_), data = Tensor::rows(data_), scale = Tensor::output(scale_, 1);
  require(x.is_floating() && is_of(data, DType::int8, {x.size(0), x.size(1)}) &&
          is_of(scale, DType::float32, {x.size(0)}));
  QuantizeArgs args{x.data(), x.stride(0), data.data<int8_t>(), scale.data<float>(), x.size(1), gelu, x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0), double(x.size(1)), threads, [&](int64_t begin, int64_t end) {
    kernels_->quantize(args, begin, end, thread_scratch(args.dim));
  });
}

void Operations::layer_norm_modulate_quantize(py::handle x_, py::handle shift_, py::handle scale_, py::handle data_,
                                              py::handle token_scale_, double eps, int threads) const {
  Tensor x = Tensor::input(x_, 3), shift = Tensor::input(shift_, 3), scale = Tensor::input(scale_, 3);
  Tensor data = Tensor::output(data_, 3), token_scale = Tensor::output(token_scale_, 2);
  require(x.is_floating() && modulates(shift, x) && scale.dtype() == shift.dtype() &&
          scale.is({x.size(0), shift.size(1), x.size(2)}));
  require(is_of(data, DType::int8, {x.size(0), x.size(1), x.size(2)}) &&
          is_of(token_scale, DType::float32, {x.size(0), x.size(1)}));
  if (x.size(0) * x.size(1) == 0) return;
  LayerNormModulateQuantizeArgs args{
      {x.data(), x.stride(0), x.stride(1), modulation(shift), modulation(scale), nullptr, x.size(1),
       x.size(1) / shift.size(1), x.size(2), float(eps), 1.0f, x.dtype()},
      data.data<int8_t>(),
      token_scale.data<float>()};
  py::gil_scoped_release release;
  parallel_for(x.size(0) * x.size(1), double(x.size(2)), threads, [&](int64_t begin, int64_t end) {
    kernels_->layer_norm_modulate_quantize(args, begin, end, thread_scratch(3 * args.norm.dim));
  });
}

void Operations::int8_linear(py::handle tokens_, py::handle token_scale_, py::handle weight_,
                             py::handle channel_scale_, py::handle bias_, py::handle residual_, py::handle gate_,
                             py::handle out_, int threads) const {
  Tensor tokens = Tensor::rows(tokens_), token_scale = Tensor::contiguous_flat(token_scale_);
  Tensor weight = Tensor::contiguous(weight_, 2), channel_scale = Tensor::contiguous(channel_scale_, 1);
  Tensor out = Tensor::rows(out_);
  int64_t count = tokens.size(0), inputs = tokens.size(1), outputs = channel_scale.size(0);
  require(tokens.dtype() == DType::int8 && is_of(token_scale, DType::float32, {count}));
  require(is_of(channel_scale, DType::float32, {outputs}) && out.is_floating() && out.is({count, outputs}));
  require(is_of(weight, DType::int8, {(outputs + 15) / 16 * 16, (inputs + 63) / 64 * 64}));
  Int8LinearArgs args{};
  Ending ending(bias_, residual_, gate_, out);
  ending.fill(args);
  if (out.elements() == 0) return;
  Tensor dense = tokens.stride(0) == inputs || count == 1 ? tokens : Tensor::rows(tokens_.attr("contiguous")());
  args.tokens = dense.data<const int8_t>();
  args.token_scale = token_scale.data<const float>();
  args.weight = weight.data<const int8_t>();
  args.weight_stride = weight.size(1);
  args.channel_scale = channel_scale.data<const float>();
  args.out = out.data();
  args.rows = count, args.inputs = inputs, args.outputs = outputs, args.dtype = out.dtype();
  int64_t scratch = kernels_->int8_linear_scratch(args), items = kernels_->int8_linear_items(args);
  // Sixteen multiply-adds take about as long as a number of an element-wise pass.
  double cost = double(count) * double(outputs) * double(inputs) / 16 / double(items);
  py::gil_scoped_release release;
  parallel_for(items, cost, threads, [&](int64_t begin, int64_t end) {
    kernels_->int8_linear(args, begin, end, thread_scratch(scratch));
  });
}

void Operations::linear(py::handle x_, py::handle weight_, py::handle bias_, py::handle residual_, py::handle gate_,
                        py::handle out_, bool gelu, int threads) const {
  Tensor x = Tensor::rows(x_), weight = Tensor::contiguous(weight_, 2), out = Tensor::rows(out_);
  int64_t count = x.size(0), inputs = x.size(1), outputs = weight.size(0);
  require(x.is_floating() && is_like(weight, x, {outputs, inputs}) && is_like(out, x, {count, outputs}));
  LinearArgs args{};
  Ending ending(bias_, residual_, gate_, out);
  ending.fill(args);
  if (out.elements() == 0) return;
  args.x = x.data(), args.x_stride = x.stride(0), args.weight = weight.data(), args.gelu = gelu;
  args.out = out.data();
  args.rows = count, args.inputs = inputs, args.outputs = outputs, args.dtype = x.dtype();
  py::gil_scoped_release release;
  run_linear(*kernels_, args, threads);
}

void Operations::quantize_key_pages(py::handle k_pages_, py::handle page_ids_, py::handle page_lengths_,
                                    py::handle data_, py::handle scale_, py::handle mean_, int threads) const {
  Tensor source = Tensor::input(k_pages_, 4), data = Tensor::output(data_, 4);
  Tensor ids = Tensor::contiguous(page_ids_, 1), lengths = Tensor::contiguous(page_lengths_, 1);
  Tensor scale = Tensor::output(scale_, 3), mean = Tensor::output(mean_, 3);
  int64_t count = source.size(0), page_tokens = source.size(1), heads = source.size(2), head_dim = source.size(3);
  require(source.is_floating() && is_of(data, DType::int8, {count, page_tokens, heads, head_dim}));
  require(is_of(scale, DType::float32, {count, page_tokens, heads}) && scale.is_dense_within(1));
  require(is_of(mean, DType::float32, {count, heads, head_dim}) && mean.is_dense_within(1));
  require(is_ids(ids, {Tensor::kAny}) && is_ids(lengths, {ids.size(0)}));
  check_page_ids("page_ids", ids, count);
  for (int64_t i = 0; i < lengths.size(0); ++i) {
    int32_t length = lengths.data<const int32_t>()[i];
    if (length < 0 || length > page_tokens)
      throw ArgumentError("page_lengths", range(0, page_tokens + 1, "lengths"), std::to_string(length));
  }
  QuantizeKeyPagesArgs args{pages(source),
                            pages(data),
                            ids.data<const int32_t>(),
                            lengths.data<const int32_t>(),
                            scale.data<float>(),
                            mean.data<float>(),
                            scale.stride(0),
                            mean.stride(0),
                            page_tokens,
                            heads,
                            head_dim,
                            source.dtype()};
  py::gil_scoped_release release;
  parallel_for(ids.size(0) * heads, 2.0 * double(page_tokens * head_dim), threads, [&](int64_t begin, int64_t end) {
    kernels_->quantize_key_pages(args, begin, end, thread_scratch(head_dim));
  });
}

void Operations::paged_attention_int8(py::handle q_, py::handle k_data_, py::handle k_scale_, py::handle k_mean_,
                                      py::handle v_pages_, py::handle page_table_, py::handle page_lengths_,
                                      py::handle out_, py::handle lse_, double scale, int threads) const {
  Tensor q = Tensor::input(q_, 4), k_data = Tensor::input(k_data_, 4), v_pages = Tensor::input(v_pages_, 4);
  Tensor k_scale = Tensor::dense_within(k_scale_, 3, 1), k_mean = Tensor::dense_within(k_mean_, 3, 1);
  Tensor table = Tensor::contiguous(page_table_, 2), lengths = Tensor::contiguous(page_lengths_, 2);
  int64_t slots = q.size(0), queries = q.size(1), heads = q.size(2), head_dim = q.size(3);
  int64_t count = k_data.size(0), page_tokens = k_data.size(1);
  require(q.is_floating() && head_dim <= kMaxHeadDim && page_tokens > 0);
  require(is_of(k_data, DType::int8, {count, page_tokens, heads, head_dim}));
  require(is_of(k_scale, DType::float32, {count, page_tokens, heads}));
  require(is_of(k_mean, DType::float32, {count, heads, head_dim}));
  require(is_like(v_pages, q, {count, page_tokens, heads, head_dim}));
  require(is_ids(table, {slots, Tensor::kAny}) && is_ids(lengths, {slots, table.size(1)}));
  int64_t keys = check_context(table, lengths, count, page_tokens);
  float* lse = lse_.is_none() ? nullptr : Tensor::output(lse_, 3).data<float>();
  if (q.elements() == 0) return;
  int64_t blocks = query_blocks(*kernels_, queries, slots * heads, threads);
  PagedAttentionInt8Args args{{q.data(), q.stride(0), q.stride(1), q.stride(2), pages(k_data), pages(v_pages),
                               table.data<const int32_t>(), lengths.data<const int32_t>(),
                               Tensor::output(out_, 4).data(), lse, queries, (queries + blocks - 1) / blocks,
                               table.size(1), heads, head_dim, float(scale), q.dtype()},
                              k_scale.data<const float>(),
                              k_mean.data<const float>(),
                              k_scale.stride(0),
                              k_mean.stride(0)};
  int64_t scratch = kernels_->paged_attention_int8_scratch(args);
  double cost = double(queries) / double(blocks) * double(keys) / double(slots) * double(head_dim) / 5;
  py::gil_scoped_release release;
  parallel_for(slots * heads * blocks, cost, threads, [&](int64_t begin, int64_t end) {
    kernels_->paged_attention_int8(args, begin, end, thread_scratch(scratch));
  });
}

}  // namespace wavecore

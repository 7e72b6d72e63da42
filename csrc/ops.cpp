#include "ops.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cpu_features.h"
#include "parallel.h"
#include "tensor.h"

namespace wavecore {
namespace {

namespace py = pybind11;

// Below this many floats a thread is not worth waking.
constexpr int64_t kFloatsPerThread = 16384;
constexpr int64_t kQueryBlock = 240;  // queries that share one packing of keys and values

const Kernels& kernels_named(const std::string& name) {
  std::vector<std::string> supported = supported_instruction_sets();
  if (std::find(supported.begin(), supported.end(), name) == supported.end()) {
    std::string list;
    for (const std::string& known : supported) list += (list.empty() ? "" : ", ") + known;
    throw ArgumentError("WAVECORE_CPU", "one of " + list + " on this processor", "'" + name + "'");
  }
#if defined(WAVECORE_HAVE_X86)
  if (name == "avx512") return avx512_kernels();
  if (name == "avx2") return avx2_kernels();
#endif
  return portable_kernels();
}

Modulation modulation(const Tensor& tensor) {
  return {tensor.data(), tensor.stride(0), tensor.stride(1), tensor.dtype()};
}

Rows rows(const Tensor& tensor) { return {tensor.data(), tensor.stride(0), tensor.stride(1)}; }

Pages pages(const Tensor& tensor) { return {tensor.data(), tensor.stride(0), tensor.stride(1), tensor.stride(2)}; }

// Weights as float32: a vector of D numbers, converted once for a call.
class Weights {
 public:
  Weights(py::handle tensor, const char* name)
      : view_(Tensor::contiguous(tensor.attr("dtype").is(py::module_::import("torch").attr("float32"))
                                     ? py::reinterpret_borrow<py::object>(tensor)
                                     : tensor.attr("float")(),
                                 name, 1)) {}
  const float* data() const { return view_.data<const float>(); }

 private:
  Tensor view_;
};

int64_t rows_per_thread(int64_t dim) { return std::max<int64_t>(1, kFloatsPerThread / std::max<int64_t>(dim, 1)); }

std::string range(int64_t first, int64_t count, const char* what) {
  return std::string(what) + " from " + std::to_string(first) + " to " + std::to_string(count - 1);
}

void check_page_ids(const char* name, const Tensor& ids, int64_t page_count) {
  const int32_t* data = ids.data<const int32_t>();
  for (int64_t i = 0; i < ids.elements(); ++i)
    if (data[i] < -1 || data[i] >= page_count)
      throw ArgumentError(name, range(-1, page_count, "page ids"), std::to_string(data[i]));
}

// Memory for one thread, kept from call to call so that large blocks are not mapped and unmapped each time.
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

}  // namespace

Operations::Operations(const std::string& instruction_set) : kernels_(&kernels_named(instruction_set)) {}

void Operations::layer_norm_modulate(py::handle x_, py::handle shift_, py::handle scale_, py::handle out_, double eps,
                                     int threads) const {
  Tensor x = Tensor::input(x_, "x", 3), shift = Tensor::input(shift_, "shift", 3);
  Tensor scale = Tensor::input(scale_, "scale", 3), out = Tensor::output(out_, "out", 3);
  if (x.elements() == 0) return;
  LayerNormModulateArgs args{x.data(),          x.stride(0), x.stride(1), modulation(shift),
                             modulation(scale), out.data(),  x.size(1),   x.size(1) / shift.size(1),
                             x.size(2),         float(eps),  x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0) * x.size(1), rows_per_thread(x.size(2)), threads,
               [&](int64_t begin, int64_t end) { kernels_->layer_norm_modulate(args, begin, end); });
}

void Operations::gate_residual(py::handle x_, py::handle y_, py::handle gate_, py::handle out_, int threads) const {
  Tensor x = Tensor::input(x_, "x", 3), y = Tensor::input(y_, "y", 3);
  Tensor gate = Tensor::input(gate_, "gate", 3), out = Tensor::output(out_, "out", 3);
  if (x.elements() == 0) return;
  GateResidualArgs args{x.data(),         x.stride(0), x.stride(1), y.data(),
                        y.stride(0),      y.stride(1), modulation(gate),
                        out.data(),       x.size(1),   x.size(1) / gate.size(1),
                        x.size(2),        x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0) * x.size(1), rows_per_thread(x.size(2)), threads,
               [&](int64_t begin, int64_t end) { kernels_->gate_residual(args, begin, end); });
}

void Operations::rms_norm(py::handle x_, py::handle weight_, py::handle out_, double eps, int threads) const {
  Tensor x = Tensor::input(x_, "x", 2), out = Tensor::output(out_, "out", 2);
  Weights weight(weight_, "weight");
  if (x.elements() == 0) return;
  RmsNormArgs args{x.data(), x.stride(0), weight.data(), out.data(), x.size(1), float(eps), x.dtype()};
  py::gil_scoped_release release;
  parallel_for(x.size(0), rows_per_thread(x.size(1)), threads,
               [&](int64_t begin, int64_t end) { kernels_->rms_norm(args, begin, end); });
}

void Operations::qkv_page_write(py::handle q_, py::handle k_, py::handle v_, py::handle q_weight_,
                                py::handle k_weight_, py::handle rope_, py::handle k_pages_, py::handle v_pages_,
                                py::handle page_ids_, py::handle unroped_pages_, py::handle unroped_ids_,
                                py::handle q_out_, double eps, int threads) const {
  Tensor q = Tensor::input(q_, "q", 3), k = Tensor::input(k_, "k", 3), v = Tensor::input(v_, "v", 3);
  Weights q_weight(q_weight_, "q_weight"), k_weight(k_weight_, "k_weight");
  Tensor rope = Tensor::contiguous(rope_, "rope", 4);
  Tensor k_pages = Tensor::output(k_pages_, "k_pages", 4), v_pages = Tensor::output(v_pages_, "v_pages", 4);
  Tensor page_ids = Tensor::contiguous(page_ids_, "page_ids", 2);
  Tensor q_out = Tensor::output(q_out_, "q_out", 4);
  check_page_ids("page_ids", page_ids, k_pages.size(0));
  Pages unroped{};
  const int32_t* unroped_ids = nullptr;
  std::vector<Tensor> keep;
  if (!unroped_pages_.is_none()) {
    keep.push_back(Tensor::output(unroped_pages_, "unroped_pages", 4));
    keep.push_back(Tensor::contiguous(unroped_ids_, "unroped_ids", 2));
    check_page_ids("unroped_ids", keep[1], keep[0].size(0));
    unroped = pages(keep[0]);
    unroped_ids = keep[1].data<const int32_t>();
  }
  QkvPageWriteArgs args{rows(q),
                        rows(k),
                        rows(v),
                        q_weight.data(),
                        k_weight.data(),
                        rope.data<const float>(),
                        rope.size(1) * rope.size(2) * 2,
                        rope.size(2) * 2,
                        pages(k_pages),
                        pages(v_pages),
                        unroped,
                        page_ids.data<const int32_t>(),
                        unroped_ids,
                        q_out.data(),
                        q.size(1),
                        k_pages.size(1),
                        page_ids.size(1),
                        k_pages.size(2),
                        k_pages.size(3),
                        float(eps),
                        q.dtype()};
  py::gil_scoped_release release;
  // Three tensors a token: a third of the rows is enough for a thread.
  int64_t grain = std::max<int64_t>(1, rows_per_thread(q.size(2)) / 3);
  parallel_for(q.size(0) * args.pages_per_slot * args.page_tokens, grain, threads,
               [&](int64_t begin, int64_t end) { kernels_->qkv_page_write(args, begin, end); });
}

void Operations::rope_shift(py::handle unroped_pages_, py::handle source_ids_, py::handle k_pages_,
                            py::handle target_ids_, py::handle rope_, int threads) const {
  Tensor source = Tensor::input(unroped_pages_, "unroped_pages", 4);
  Tensor target = Tensor::output(k_pages_, "k_pages", 4), rope = Tensor::contiguous(rope_, "rope", 4);
  Tensor source_ids = Tensor::contiguous(source_ids_, "source_ids", 1);
  Tensor target_ids = Tensor::contiguous(target_ids_, "target_ids", 1);
  check_page_ids("target_ids", target_ids, target.size(0));
  for (int64_t i = 0; i < target_ids.size(0); ++i) {
    int32_t id = source_ids.data<const int32_t>()[i];
    if (target_ids.data<const int32_t>()[i] >= 0 && (id < 0 || id >= source.size(0)))
      throw ArgumentError("source_ids", range(0, source.size(0), "page ids") + " where the target is not -1",
                          std::to_string(id));
  }
  RopeShiftArgs args{pages(source),
                     pages(target),
                     source_ids.data<const int32_t>(),
                     target_ids.data<const int32_t>(),
                     rope.data<const float>(),
                     rope.size(1) * rope.size(2) * 2,
                     rope.size(2) * 2,
                     target.size(1),
                     target.size(2),
                     target.size(3),
                     target.dtype()};
  py::gil_scoped_release release;
  parallel_for(target_ids.size(0) * args.page_tokens, rows_per_thread(args.heads * args.head_dim), threads,
               [&](int64_t begin, int64_t end) { kernels_->rope_shift(args, begin, end); });
}

void Operations::paged_attention(py::handle q_, py::handle k_pages_, py::handle v_pages_, py::handle page_table_,
                                 py::handle page_lengths_, py::handle out_, py::handle lse_, double scale,
                                 int threads) const {
  Tensor q = Tensor::input(q_, "q", 4);
  Tensor k_pages = Tensor::input(k_pages_, "k_pages", 4), v_pages = Tensor::input(v_pages_, "v_pages", 4);
  Tensor table = Tensor::contiguous(page_table_, "page_table", 2);
  Tensor lengths = Tensor::contiguous(page_lengths_, "page_lengths", 2);
  Tensor out = Tensor::output(out_, "out", 4);
  const int32_t* ids = table.data<const int32_t>();
  const int32_t* valid = lengths.data<const int32_t>();
  for (int64_t i = 0; i < table.elements(); ++i) {
    if (valid[i] < 0 || valid[i] > k_pages.size(1))
      throw ArgumentError("page_lengths", range(0, k_pages.size(1) + 1, "lengths"), std::to_string(valid[i]));
    if (valid[i] && (ids[i] < 0 || ids[i] >= k_pages.size(0)))
      throw ArgumentError("page_table", range(0, k_pages.size(0), "page ids") + " where the length is not 0",
                          std::to_string(ids[i]));
  }
  float* lse = lse_.is_none() ? nullptr : Tensor::output(lse_, "lse", 3).data<float>();
  if (q.elements() == 0) return;
  int64_t queries = q.size(1), blocks = (queries + kQueryBlock - 1) / kQueryBlock;
  PagedAttentionArgs args{q.data(),
                          q.stride(0),
                          q.stride(1),
                          q.stride(2),
                          pages(k_pages),
                          pages(v_pages),
                          ids,
                          valid,
                          out.data(),
                          lse,
                          queries,
                          (queries + blocks - 1) / blocks,
                          table.size(1),
                          q.size(2),
                          q.size(3),
                          float(scale),
                          q.dtype()};
  int64_t scratch = kernels_->paged_attention_scratch(args);
  py::gil_scoped_release release;
  parallel_for(q.size(0) * q.size(2) * blocks, 1, threads, [&](int64_t begin, int64_t end) {
    kernels_->paged_attention(args, begin, end, thread_scratch(scratch));
  });
}

}  // namespace wavecore

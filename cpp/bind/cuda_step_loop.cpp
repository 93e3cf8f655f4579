#include <pybind11/numpy.h>

#include <utility>

#include "commit.h"
#include "cuda_bind.h"
#include "follow.h"
#include "step_device.h"
#include "step_loop.h"

namespace py = pybind11;

namespace tercet::cuda {
namespace {

// A loop, and the ring of the device it owns.
struct CudaStepLoop {
  explicit CudaStepLoop(std::unique_ptr<CudaStepDevice> device, int lead_us)
      : ring(device->ring()), loop(std::move(device), ring.num_records, int64_t{1000} * lead_us) {}

  const RecordRing ring;
  StepLoop loop;
};

py::object next(CudaStepLoop& self) {
  std::optional<Step> step;
  {
    const py::gil_scoped_release release;
    step = self.loop.next();
  }
  if (!step) return py::none();
  const py::array_t<int32_t> tokens(static_cast<py::ssize_t>(step->tokens.size()), step->tokens.data());
  return py::make_tuple(tokens, step->took_ns / 1000, step->ended_ns);
}

}  // namespace

void bind_step_loop(py::module_& m) {
  py::class_<StepGraph, std::shared_ptr<StepGraph>>(m, "StepGraph").def(py::init([](uintptr_t graph, uintptr_t stream) {
    return make_step_graph(address<CUgraph_st>(graph), stream_of(stream));
  }));

  using WithoutGil = py::call_guard<py::gil_scoped_release>;
  py::class_<CudaStepLoop>(m, "StepLoop")
      .def(py::init([](int num_records, int max_rows, int lead_us) {
             return std::make_unique<CudaStepLoop>(std::make_unique<CudaStepDevice>(num_records, max_rows), lead_us);
           }),
           py::arg("num_records"), py::arg("max_rows"), py::arg("lead_us") = 100)
      .def(
          "run",
          [](CudaStepLoop& self, std::shared_ptr<StepGraph> graph, int num_steps, uintptr_t stream, bool stops) {
            self.loop.run(std::move(graph), stream_of(stream), num_steps, stops);
          },
          WithoutGil())
      .def(
          "settle", [](CudaStepLoop& self) { return self.loop.settle(); }, WithoutGil())
      .def(
          "extend", [](CudaStepLoop& self, int num_steps) { return self.loop.extend(num_steps); }, WithoutGil())
      .def(
          "wait", [](CudaStepLoop& self) { return self.loop.wait(); }, WithoutGil())
      .def(
          "wake", [](CudaStepLoop& self) { self.loop.wake(); }, WithoutGil())
      .def("next", &next)
      .def("stop", [](CudaStepLoop& self) { self.loop.stop(); })
      .def("close", [](CudaStepLoop& self) { self.loop.close(); }, WithoutGil());

  m.def("commit_step",
        [](uintptr_t sampled, int num_rows, uintptr_t token_ids, uintptr_t positions, uintptr_t slots,
           uintptr_t context_lens, uintptr_t block_tables, int table_width, int block_size, uintptr_t params,
           uintptr_t status, uintptr_t remaining, uintptr_t stop_ids, const CudaStepLoop& loop, uintptr_t stream) {
          commit_step({address<const int64_t>(sampled), address<int64_t>(token_ids), address<int64_t>(positions),
                       address<int64_t>(slots), address<int>(context_lens), address<const int>(block_tables),
                       address<SamplingParams>(params), address<int>(status), address<int>(remaining),
                       address<const int>(stop_ids), num_rows, table_width, block_size},
                      loop.ring, stream_of(stream));
        });
  m.def("follow_step",
        [](uintptr_t follows, uintptr_t query_starts, uintptr_t stop_ids, uintptr_t token_ids, uintptr_t slots,
           uintptr_t context_lens, uintptr_t status, int num_rows, const CudaStepLoop& loop, uintptr_t stream) {
          follow_step({address<const int>(follows), address<const int>(query_starts), address<const int>(stop_ids),
                       address<int64_t>(token_ids), address<int64_t>(slots), address<int>(context_lens),
                       address<int>(status), num_rows},
                      loop.ring, stream_of(stream));
        });
}

}  // namespace tercet::cuda

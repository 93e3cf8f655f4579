#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string_view>

#include "bind.h"
#include "tercet/blake2s.h"
#include "tercet/block_pool.h"
#include "tercet/block_table.h"

namespace py = pybind11;

namespace tercet {
namespace {

using IdArray = py::array_t<std::int32_t, py::array::c_style>;
using IdList = std::vector<std::int32_t>;

// Fills row[0 .. num_blocks) and leaves the rest as it is.
void write_row(const BlockTable& table, IdArray row) {
  if (row.ndim() != 1 || row.size() < table.num_blocks()) {
    throw std::invalid_argument("write_row needs one dimension of at least " + std::to_string(table.num_blocks()) +
                                " elements");
  }
  std::copy(table.blocks().begin(), table.blocks().end(), row.mutable_data());
}

py::array_t<std::int64_t> slots(const BlockTable& table, int first, int count) {
  py::array_t<std::int64_t> out(std::max(count, 0));
  table.slots(first, count, out.mutable_data());
  return out;
}

py::bytes digest(const py::bytes& data, const py::bytes& person, int size) {
  const std::string_view message = data;
  const std::string_view use = person;
  if (use.size() != 8) throw std::invalid_argument("person must be 8 bytes");
  if (size < 1 || size > 32) throw std::invalid_argument("digest_size must be 1 to 32");
  std::uint8_t out[32];
  blake2s(message.data(), message.size(), use.data(), out, static_cast<std::size_t>(size));
  return py::bytes(reinterpret_cast<const char*>(out), static_cast<std::size_t>(size));
}

const std::int32_t* ids_of(const IdArray& ids) {
  if (ids.ndim() != 1) throw std::invalid_argument("token_ids must have one dimension");
  return ids.data();
}

}  // namespace

void bind_blocks(py::module_& m) {
  py::register_exception<OutOfBlocks>(m, "OutOfBlocks", PyExc_RuntimeError);
  py::register_exception<PoolCorrupt>(m, "PoolCorrupt", PyExc_RuntimeError);

  py::class_<BlockPool, std::shared_ptr<BlockPool>>(m, "BlockPool")
      .def(py::init<int, int, bool>(), py::arg("num_blocks"), py::arg("block_size"),
           py::arg("enable_prefix_caching") = true)
      .def_property_readonly("block_size", &BlockPool::block_size)
      .def_property_readonly("num_total", &BlockPool::num_total)
      .def_property_readonly("num_free", &BlockPool::num_free)
      .def_property_readonly("num_cached", &BlockPool::num_cached)
      .def_property_readonly("num_used", &BlockPool::num_used)
      .def("check", &BlockPool::check, py::call_guard<py::gil_scoped_release>());

  // An int32 array is read in place; any other sequence of ints is converted.
  py::class_<BlockTable>(m, "BlockTable")
      .def(py::init([](std::shared_ptr<BlockPool> pool, const py::bytes& salt) {
             const std::string_view bytes = salt;
             return std::make_unique<BlockTable>(std::move(pool), bytes.data(), bytes.size());
           }),
           py::arg("pool").none(false), py::arg("salt") = py::bytes())
      .def(
          "match_prefix",
          [](BlockTable& table, const IdArray& ids) {
            const std::int32_t* data = ids_of(ids);
            return table.match_prefix(data, static_cast<std::size_t>(ids.size()));
          },
          py::arg("token_ids").noconvert())
      .def(
          "match_prefix",
          [](BlockTable& table, const IdList& ids) { return table.match_prefix(ids.data(), ids.size()); },
          py::arg("token_ids"))
      .def("reserve", &BlockTable::reserve, py::arg("num_tokens"))
      .def(
          "commit",
          [](BlockTable& table, const IdArray& ids) {
            const std::int32_t* data = ids_of(ids);
            table.commit(data, static_cast<std::size_t>(ids.size()));
          },
          py::arg("token_ids").noconvert())
      .def(
          "commit", [](BlockTable& table, const IdList& ids) { table.commit(ids.data(), ids.size()); },
          py::arg("token_ids"))
      .def("fork", &BlockTable::fork)
      .def("release", &BlockTable::release)
      .def_property_readonly("num_blocks", &BlockTable::num_blocks)
      .def_property_readonly("num_tokens", &BlockTable::num_tokens)
      .def("blocks", &BlockTable::blocks)
      .def("write_row", &write_row, py::arg("row").noconvert())
      .def("slots", &slots, py::arg("first"), py::arg("count"));

  m.def("blake2s", &digest, py::arg("data"), py::arg("person"), py::arg("digest_size"));
}

}  // namespace tercet

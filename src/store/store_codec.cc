#include "store/store_codec.h"

#include <filesystem>

namespace kvcake {
namespace {

std::string TablesPath(const CodecRow& row, const std::string& path, const std::string& store_dir) {
  const std::string& place = path.empty() ? store_dir : path;
  std::error_code ignored;
  if (!path.empty() && !std::filesystem::is_directory(path, ignored)) return path;
  return fmt::format("{}/{}-1.tables", place, row.name);
}

}  // namespace

StoreCodec StoreCodec::Load(Codec codec, const std::string& path, const std::string& store_dir) {
  StoreCodec loaded;
  loaded.row = FindCodec(codec);
  if (loaded.row->fit == nullptr) return loaded;
  if (path.empty() && store_dir.empty()) {
    loaded.usable = Fail(ErrorCode::kInvalidArgument,
                         "codec {} needs tables: name them by --codec-tables, or tables= of the "
                         "store, which is no directory that might have them",
                         loaded.row->name);
    return loaded;
  }
  loaded.tables_path = TablesPath(*loaded.row, path, store_dir);
  auto tables = LoadTables(loaded.tables_path);
  if (!tables) {
    loaded.usable = Fail(tables.error().code, "codec {} has no tables: {}", loaded.row->name,
                         tables.error().message);
    return loaded;
  }
  loaded.tables_digest = TablesDigest(*tables);
  loaded.tables = std::make_shared<const CodecTables>(std::move(*tables));
  return loaded;
}

Result<std::unique_ptr<LayerCodec>> StoreCodec::Make(const KvLayout& layout, uint32_t model) const {
  if (!usable) return tl::unexpected(usable.error());
  auto made = MakeCodec(row->codec, {.layout = layout, .tables = tables.get(), .model = model});
  if (made || tables_path.empty()) return made;
  return Fail(made.error().code, "{}: {}", tables_path, made.error().message);
}

}  // namespace kvcake

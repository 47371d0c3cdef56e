#include "models/files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/watched_files.h"
#include "models/embedded.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

std::string reason(int error) { return std::generic_category().message(error); }

class FileDescriptor {
 public:
  explicit FileDescriptor(const std::string& path)
      : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

/// Maps a regular file. O_NONBLOCK above: a pipe of that name must not make us wait.
FileBytes map_file(const std::string& path) {
  const FileDescriptor file(path);
  struct stat status = {};
  if (file.get() < 0 || ::fstat(file.get(), &status) != 0) {
    throw Error("{}: cannot be opened: {}", path, reason(errno));
  }
  if (!S_ISREG(status.st_mode)) throw Error("{}: is not a regular file", path);
  const auto size = static_cast<std::size_t>(status.st_size);
  if (size == 0) return {path, {}, nullptr};
  void* const address = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw Error("{}: cannot be mapped: {}", path, reason(errno));
  auto watched = std::make_shared<const WatchedFile>(address, size, path);
  const auto unmap = [size, watched = std::move(watched)](const void* mapped) mutable {
    watched.reset();
    ::munmap(const_cast<void*>(mapped), size);
  };
  return {path, {static_cast<const std::byte*>(address), size}, {address, unmap}};
}

/// What git leaves in place of a large file where git-lfs is not installed.
void refuse_lfs_pointer(const FileBytes& file) {
  constexpr std::string_view start = "version https://git-lfs.github.com/spec/v1";
  const auto bytes = file.bytes();
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(start)) return;
  throw Error(
      "{}: is a Git LFS pointer of {} bytes, not the file itself; run `git lfs pull` in its folder",
      file.path(), bytes.size());
}

const EmbeddedFile* find_embedded(std::string_view name) {
  for (const EmbeddedFile& file : embedded_files()) {
    if (file.name == name) return &file;
  }
  return nullptr;
}

}  // namespace

ModelFiles ModelFiles::open(const std::string& path_or_name) {
  ModelFiles files;
  files.root_ = path_or_name;
  files.embedded_ = path_or_name == kEmbeddedModel;
  if (files.embedded_) return files;
  std::error_code error;
  const fs::file_status status = fs::status(path_or_name, error);
  if (!fs::exists(status)) {
    throw Error(
        "no model folder '{}' ({}); give a Hugging Face folder, or '{}' for the embedded model",
        path_or_name, error ? error.message() : reason(ENOENT), kEmbeddedModel);
  }
  if (!fs::is_directory(status)) {
    throw Error("'{}' is no folder; give the Hugging Face folder that holds config.json",
                path_or_name);
  }
  if (const fs::directory_iterator entries(path_or_name, error); error)
    throw Error("model folder '{}' cannot be read: {}", path_or_name, error.message());
  return files;
}

std::string ModelFiles::path(const std::string& file) const {
  if (embedded_) return fmt::format("{}:{}", root_, file);
  return (fs::path(root_) / file).string();
}

bool ModelFiles::contains(const std::string& file) const {
  if (embedded_) return find_embedded(file) != nullptr;
  std::error_code error;
  return fs::exists(path(file), error);
}

std::optional<FileBytes> ModelFiles::map(const std::string& file) const {
  if (embedded_) {
    const EmbeddedFile* found = find_embedded(file);
    if (found == nullptr) return std::nullopt;
    return FileBytes(path(file), found->bytes, nullptr);
  }
  if (!contains(file)) return std::nullopt;
  FileBytes mapped = map_file(path(file));
  refuse_lfs_pointer(mapped);
  return mapped;
}

std::optional<std::string> ModelFiles::read(const std::string& file) const {
  const auto mapped = map(file);
  if (!mapped) return std::nullopt;
  const auto bytes = mapped->bytes();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace sluice

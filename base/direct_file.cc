#include "base/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace sluice {

DirectFile::DirectFile(std::filesystem::path path) : path_(std::move(path)) {
  cached_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (cached_ < 0) throw Error("{}: cannot be opened: {}", path_.string(), std::strerror(errno));
  open_directly(O_RDONLY);
}

DirectFile DirectFile::temporary(const std::filesystem::path& folder, std::uint64_t size_bytes) {
  DirectFile file;
  std::string name = (folder / "sluice-XXXXXX").string();
  file.cached_ = mkostemp(name.data(), O_CLOEXEC);
  if (file.cached_ < 0)
    throw Error("{}: no file can be made there: {}", folder.string(), std::strerror(errno));
  file.path_ = name;
  file.open_directly(O_RDWR);
  unlink(name.c_str());
  file.path_ = folder / "(a file without a name)";
  const auto size = static_cast<off_t>(size_bytes);
  int status = 0;
  do status = size == 0 ? 0 : fallocate(file.cached_, 0, 0, size);
  while (status != 0 && errno == EINTR);
  if (status != 0 && errno == EOPNOTSUPP) status = ftruncate(file.cached_, size);
  if (status != 0) {
    throw Error("{}: no room for a file: {}", folder.string(), std::strerror(errno));
  }
  return file;
}

void DirectFile::open_directly(int flags) {
  direct_ = ::open(path_.c_str(), flags | O_CLOEXEC | O_DIRECT);
  if (direct_ < 0) {
    logger().info("{}: its file system works through the page cache only ({})", path_.string(),
                  std::strerror(errno));
  }
}

DirectFile::~DirectFile() { close(); }

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  if (this == &other) return *this;
  close();
  path_ = std::move(other.path_);
  direct_ = std::exchange(other.direct_, -1);
  cached_ = std::exchange(other.cached_, -1);
  return *this;
}

void DirectFile::close() noexcept {
  if (direct_ >= 0) ::close(direct_);
  if (cached_ >= 0) ::close(cached_);
  direct_ = cached_ = -1;
}

bool DirectFile::may_try_again(const char* what, int& descriptor) const {
  if (errno == EINTR) return true;
  if (errno != EINVAL || descriptor != direct_) return false;
  logger().info("{}: its file system refuses {} past the page cache", path_.string(), what);
  descriptor = cached_;
  return true;
}

void DirectFile::read(std::uint64_t offset, std::size_t size, std::byte* to) const {
  const bool aligned =
      reinterpret_cast<std::uintptr_t>(to) % alignment == 0 && offset % alignment == 0;
  const std::size_t direct_size = direct_ >= 0 && aligned ? size / alignment * alignment : 0;
  if (direct_size > 0) read_all(direct_, offset, direct_size, to);
  if (direct_size < size)
    read_all(cached_, offset + direct_size, size - direct_size, to + direct_size);
}

void DirectFile::read_all(int descriptor, std::uint64_t offset, std::size_t size,
                          std::byte* to) const {
  const std::uint64_t end = offset + size;
  while (size > 0) {
    const ssize_t got = pread(descriptor, to, size, static_cast<off_t>(offset));
    if (got < 0 && may_try_again("reads", descriptor)) continue;
    if (got < 0) {
      throw Error("{}: cannot be read at byte {}: {}", path_.string(), offset,
                  std::strerror(errno));
    }
    if (got == 0) {
      throw Error("{}: ends before byte {}; it was cut short while it was in use", path_.string(),
                  end);
    }
    offset += static_cast<std::uint64_t>(got);
    size -= static_cast<std::size_t>(got);
    to += got;
  }
}

void DirectFile::write(std::uint64_t offset, std::size_t size, const std::byte* from) const {
  const bool aligned = reinterpret_cast<std::uintptr_t>(from) % alignment == 0 &&
                       offset % alignment == 0 && size % alignment == 0;
  write_all(direct_ >= 0 && aligned ? direct_ : cached_, offset, size, from);
}

void DirectFile::write_all(int descriptor, std::uint64_t offset, std::size_t size,
                           const std::byte* from) const {
  while (size > 0) {
    const ssize_t written = pwrite(descriptor, from, size, static_cast<off_t>(offset));
    if (written < 0 && may_try_again("writes", descriptor)) continue;
    if (written == 0) errno = ENOSPC;
    if (written <= 0) {
      throw Error("{}: cannot be written at byte {}: {}", path_.string(), offset,
                  std::strerror(errno));
    }
    offset += static_cast<std::uint64_t>(written);
    size -= static_cast<std::size_t>(written);
    from += written;
  }
}

}  // namespace sluice

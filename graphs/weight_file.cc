#include "graphs/weight_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/files.h"
#include "codelets/weights/plain.h"
#include "codelets/weights/weight_packing.h"
#include "graphs/model_weights.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* suffix = ".weights";
constexpr const char* temporary_mark = ".partial-";

/// The header; more than any identity takes, or it is cut and its hash alone tells.
constexpr std::uint64_t header_bytes = 64 * 1024;

/// What packs, and how: changes when a packed weight's bytes do.
constexpr int packing_version = 6;

std::string identity_of(const Model& model, DType dtype, const HotExperts& hot) {
  std::string text =
      fmt::format("sluice packed weights {}\n{}\n{} {}, oneDNN {}\n", packing_version, model.name,
                  to_string(dtype), onednn_isa_name(), onednn_version());
  text += PackedWeights(model.config, dtype, most_chunk_bytes, hot).identity();
  text += fmt::format("\n{} layers\n{}\n", model.config.num_layers, model.weights->identity());
  return text;
}

/// A model's name as part of a file's.
std::string plain_name(const std::string& model) {
  std::string name = fs::path(model).lexically_normal().filename().string();
  if (name.empty()) name = fs::path(model).lexically_normal().parent_path().filename().string();
  std::replace_if(
      name.begin(), name.end(),
      [](char letter) {
        return std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '.' &&
               letter != '-';
      },
      '_');
  return name.substr(0, 100);
}

std::string gigabytes(std::uint64_t bytes) {
  return fmt::format("{:.2f} GB", static_cast<double>(bytes) * 1e-9);
}

}  // namespace

std::uint64_t WeightFile::size_of(const ModelConfig& config, DType dtype, const HotExperts& hot) {
  std::uint64_t bytes = header_bytes;
  for (const std::size_t size : PackedWeights(config, dtype, most_chunk_bytes, hot).sizes())
    bytes += DirectFile::aligned(size);
  return bytes;
}

WeightFile::WeightFile(Look /*only*/, const fs::path& folder, const Model& model, DType dtype,
                       const HotExperts& hot)
    : header_(identity_of(model, dtype, hot)),
      size_bytes_(size_of(model.config, dtype, hot)),
      next_offset_(header_bytes) {
  const std::size_t hash = std::hash<std::string>()(header_);
  header_.resize(header_bytes, '\0');
  path_ = fs::absolute(folder) /
          fmt::format("{}-{}-{:016x}{}", plain_name(model.name), to_string(dtype), hash, suffix);
  whole_ = has_header();
}

std::uint64_t WeightFile::missing_bytes(const fs::path& folder, const Model& model, DType dtype,
                                        const HotExperts& hot) {
  const WeightFile file(Look(), folder, model, dtype, hot);
  return file.is_whole() ? 0 : file.size_bytes();
}

WeightFile::WeightFile(const fs::path& folder, const Model& model, DType dtype,
                       const HotExperts& hot)
    : WeightFile(Look(), folder, model, dtype, hot) {
  const std::error_code error = make_private_folders(folder);
  if (!fs::is_directory(folder)) {
    throw Error("--disk {}: no such folder, and it cannot be made: {}", folder.string(),
                error ? error.message() : "a file has that name");
  }
  if (!whole_) begin();
}

WeightFile::~WeightFile() {
  if (!temporary_.empty()) unlink(temporary_.c_str());
  if (descriptor_ >= 0) close(descriptor_);
}

bool WeightFile::has_header() const {
  struct stat status {};
  if (stat(path_.c_str(), &status) != 0 ||
      static_cast<std::uint64_t>(status.st_size) != size_bytes_)
    return false;
  const int descriptor = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  std::string found(header_.size(), '\0');
  const ssize_t got = pread(descriptor, found.data(), found.size(), 0);
  close(descriptor);
  return got == static_cast<ssize_t>(found.size()) && found == header_;
}

/// Whoever still writes one holds its lock.
void WeightFile::remove_left_behind() const {
  const std::string beginning = path_.filename().string() + temporary_mark;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_.parent_path(), ignored)) {
    if (!entry.path().filename().string().starts_with(beginning)) continue;
    const int descriptor = ::open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor < 0) continue;
    if (flock(descriptor, LOCK_EX | LOCK_NB) == 0) unlink(entry.path().c_str());
    close(descriptor);
  }
}

void WeightFile::begin() {
  remove_left_behind();
  std::error_code error;
  const fs::space_info space = fs::space(path_.parent_path(), error);
  if (!error && space.available < size_bytes_) {
    throw Error(
        "--disk {}: the model's packed weights take {}, its disk has {} free; choose another",
        path_.parent_path().string(), gigabytes(size_bytes_), gigabytes(space.available));
  }
  temporary_ = path_.string() + temporary_mark + std::to_string(getpid());
  do {  // another run may take it for left behind before it is locked
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (descriptor_ < 0) {
      const std::string reason = std::strerror(errno);
      temporary_.clear();
      throw Error("--disk {}: cannot be written to: {}", path_.parent_path().string(), reason);
    }
    flock(descriptor_, LOCK_EX);
  } while (access(temporary_.c_str(), F_OK) != 0);
}

std::uint64_t WeightFile::place(std::size_t size) {
  const std::uint64_t offset = next_offset_;
  next_offset_ += DirectFile::aligned(size);
  return offset;
}

void WeightFile::write(std::uint64_t offset, const std::byte* data, std::size_t size) {
  const std::uint64_t first = offset;
  const std::size_t whole_size = size;
  while (size > 0) {
    const ssize_t count = pwrite(descriptor_, data, size, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      throw Error("{}: cannot be written: {}; the model's packed weights take {}", path_.string(),
                  std::strerror(errno), gigabytes(size_bytes_));
    }
    data += count;
    offset += static_cast<std::uint64_t>(count);
    size -= static_cast<std::size_t>(count);
  }
  written_bytes_ += whole_size;
  // Begins to write it out, so that the page cache does not fill.
  sync_file_range(descriptor_, static_cast<off_t>(first), static_cast<off_t>(whole_size),
                  SYNC_FILE_RANGE_WRITE);
}

void WeightFile::publish() {
  // The end of the last block is read with it.
  if (ftruncate(descriptor_, static_cast<off_t>(size_bytes_)) != 0) {
    throw Error("{}: cannot be written: {}; the model's packed weights take {}", path_.string(),
                std::strerror(errno), gigabytes(size_bytes_));
  }
  write(0, reinterpret_cast<const std::byte*>(header_.data()), header_.size());
  if (fsync(descriptor_) != 0)
    throw Error("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED);
  if (rename(temporary_.c_str(), path_.c_str()) != 0)
    throw Error("{}: cannot be written: {}", path_.string(), std::strerror(errno));
  temporary_.clear();
  whole_ = true;
  const int folder = ::open(path_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return;
  fsync(folder);  // the name
  close(folder);
}

}  // namespace sluice

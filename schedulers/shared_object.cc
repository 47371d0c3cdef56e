#include "schedulers/shared_object.h"

#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr const char* not_whole = "the file is not whole";

#if defined(__x86_64__)
constexpr unsigned our_machine = EM_X86_64;
constexpr unsigned relative_relocation = R_X86_64_RELATIVE;
#elif defined(__aarch64__)
constexpr unsigned our_machine = EM_AARCH64;
constexpr unsigned relative_relocation = R_AARCH64_RELATIVE;
#else
#error "add this processor's ELF number"
#endif
constexpr unsigned our_byte_order =
    std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;

/// More than any linker writes.
constexpr std::uint64_t most_parts = 64;
constexpr std::uint64_t most_dynamic_entries = 4096;
constexpr std::uint64_t most_memory_bytes = std::uint64_t{1} << 32;
constexpr std::uint64_t page_bytes = 4096;

/// Whether [offset, offset + size) lies in [0, end), without overflow.
bool lies_within(std::uint64_t offset, std::uint64_t size, std::uint64_t end) {
  return offset <= end && size <= end - offset;
}

template <typename... Args>
std::string damaged(fmt::format_string<Args...> format, Args&&... args) {
  return fmt::format("its ELF headers are damaged: {}",
                     fmt::format(format, std::forward<Args>(args)...));
}

/// The headers of one file. Each check returns what is wrong, or nothing.
class SharedObject {
 public:
  SharedObject(const fs::path& file, std::uint64_t size_bytes)
      : stream_(file, std::ios::binary), size_bytes_(size_bytes) {}

  std::string problem() {
    if (!read(0, header_) || std::memcmp(header_.e_ident, ELFMAG, SELFMAG) != 0) return "";
    for (const auto check :
         {&SharedObject::check_header, &SharedObject::check_sections, &SharedObject::read_parts,
          &SharedObject::check_loaded, &SharedObject::check_others, &SharedObject::read_dynamic,
          &SharedObject::check_tables, &SharedObject::check_relocations,
          &SharedObject::check_strings}) {
      if (std::string found = (this->*check)(); !found.empty()) return found;
    }
    return "";
  }

 private:
  template <typename T>
  bool read(std::uint64_t offset, T& value) {
    if (!lies_within(offset, sizeof(value), size_bytes_)) return false;
    stream_.clear();
    stream_.seekg(static_cast<std::streamoff>(offset));
    stream_.read(reinterpret_cast<char*>(&value), sizeof(value));
    return bool(stream_);
  }

  std::string check_header() {
    if (header_.e_ident[EI_CLASS] != ELFCLASS64)
      return fmt::format("it is no 64-bit object (ELF class {})", header_.e_ident[EI_CLASS]);
    if (header_.e_ident[EI_DATA] != our_byte_order || header_.e_machine != our_machine) {
      return fmt::format("it is for another kind of processor (ELF machine {}, here it is {})",
                         header_.e_machine, our_machine);
    }
    if (header_.e_type != ET_DYN)
      return fmt::format("it is no shared object (ELF type {})", header_.e_type);
    if (header_.e_version != EV_CURRENT) return damaged("version {}", header_.e_version);
    if (header_.e_phentsize != sizeof(Elf64_Phdr))
      return damaged("program headers of {} bytes", header_.e_phentsize);
    if (header_.e_phnum == 0 || header_.e_phnum > most_parts)
      return damaged("{} program headers", header_.e_phnum);
    return "";
  }

  /// They come last, behind what is loaded and what debuggers read.
  std::string check_sections() {
    const std::uint64_t bytes = std::uint64_t{header_.e_shnum} * header_.e_shentsize;
    return lies_within(header_.e_shoff, bytes, size_bytes_) ? "" : not_whole;
  }

  std::string read_parts() {
    for (std::uint64_t i = 0; i < header_.e_phnum; ++i) {
      Elf64_Phdr part{};
      if (!lies_within(header_.e_phoff, (i + 1) * sizeof(part), size_bytes_) ||
          !read(header_.e_phoff + i * sizeof(part), part) ||
          !lies_within(part.p_offset, part.p_filesz, size_bytes_)) {
        return not_whole;
      }
      if (part.p_align > 1 && !std::has_single_bit(part.p_align))
        return damaged("program header {} is aligned to {} bytes", i, part.p_align);
      if (!lies_within(part.p_vaddr, part.p_memsz, most_memory_bytes) ||
          !lies_within(part.p_vaddr, part.p_filesz, most_memory_bytes)) {
        return damaged("program header {} has {:#x} bytes at {:#x}", i,
                       std::max(part.p_memsz, part.p_filesz), part.p_vaddr);
      }
      parts_.push_back(part);
    }
    return "";
  }

  std::string check_loaded() {
    std::uint64_t end = 0;
    for (const Elf64_Phdr& part : parts_) {
      if (part.p_type != PT_LOAD) continue;
      if (part.p_filesz > part.p_memsz)
        return damaged("{} bytes of the file go into {}", part.p_filesz, part.p_memsz);
      if (part.p_align % page_bytes != 0 || part.p_align == 0 ||
          (part.p_vaddr - part.p_offset) % part.p_align != 0) {
        return damaged("the part at {:#x} is not aligned", part.p_vaddr);
      }
      if (loaded_.empty() ? part.p_vaddr >= page_bytes : part.p_vaddr < end)
        return damaged("the part at {:#x} is out of order", part.p_vaddr);
      end = part.p_vaddr + part.p_memsz;
      loaded_.push_back(part);
    }
    if (loaded_.empty()) return damaged("there is nothing to load");
    return holds_code() ? "" : damaged("no part can be run");
  }

  bool holds_code() const {
    return std::any_of(loaded_.begin(), loaded_.end(),
                       [](const Elf64_Phdr& part) { return (part.p_flags & PF_X) != 0; });
  }

  /// Program headers that describe some of what is loaded.
  std::string check_others() {
    for (const Elf64_Phdr& part : parts_) {
      const bool describes = part.p_type == PT_DYNAMIC || part.p_type == PT_NOTE ||
                             part.p_type == PT_GNU_PROPERTY || part.p_type == PT_GNU_EH_FRAME ||
                             part.p_type == PT_PHDR || part.p_type == PT_TLS;
      // What a thread's variables have beyond the file is in no memory of the object's.
      const std::uint64_t bytes = part.p_type == PT_TLS ? part.p_filesz : part.p_memsz;
      if (describes && bytes > 0 && !in_file_memory(part.p_vaddr, part.p_offset, bytes))
        return damaged("what is at {:#x} is not loaded from there", part.p_vaddr);
      if (part.p_type == PT_GNU_RELRO && !in_memory(part.p_vaddr, part.p_memsz))
        return damaged("what is made read-only at {:#x} is not loaded", part.p_vaddr);
      if (part.p_type == PT_TLS && part.p_filesz > part.p_memsz)
        return damaged("{} bytes for a thread's variables of {}", part.p_filesz, part.p_memsz);
    }
    return "";
  }

  /// Whether one loaded part has these bytes; its last page counts as a whole.
  bool in_memory(std::uint64_t address, std::uint64_t bytes) const {
    return std::any_of(loaded_.begin(), loaded_.end(), [&](const Elf64_Phdr& part) {
      const std::uint64_t end =
          (part.p_vaddr + part.p_memsz + page_bytes - 1) / page_bytes * page_bytes;
      return address >= part.p_vaddr && lies_within(address, bytes, end);
    });
  }

  /// Whether one loaded part has these bytes, read from this place of the file.
  bool in_file_memory(std::uint64_t address, std::uint64_t offset, std::uint64_t bytes) const {
    return std::any_of(loaded_.begin(), loaded_.end(), [&](const Elf64_Phdr& part) {
      return address >= part.p_vaddr && lies_within(address - part.p_vaddr, bytes, part.p_filesz) &&
             address - part.p_vaddr == offset - part.p_offset;
    });
  }

  /// Where the file has what is loaded at an address.
  std::optional<std::uint64_t> offset_of(std::uint64_t address) const {
    for (const Elf64_Phdr& part : loaded_) {
      if (address >= part.p_vaddr && address - part.p_vaddr < part.p_filesz)
        return address - part.p_vaddr + part.p_offset;
    }
    return std::nullopt;
  }

  std::string read_dynamic() {
    const auto is_dynamic = [](const Elf64_Phdr& part) { return part.p_type == PT_DYNAMIC; };
    if (std::count_if(parts_.begin(), parts_.end(), is_dynamic) != 1)
      return damaged("it has not one dynamic section");
    const Elf64_Phdr& part = *std::find_if(parts_.begin(), parts_.end(), is_dynamic);
    const std::uint64_t count = part.p_filesz / sizeof(Elf64_Dyn);
    for (std::uint64_t i = 0; i < std::min(count, most_dynamic_entries); ++i) {
      Elf64_Dyn entry{};
      if (!read(part.p_offset + i * sizeof(entry), entry)) return not_whole;
      if (entry.d_tag == DT_NULL) return "";
      const bool is_name = entry.d_tag == DT_NEEDED || entry.d_tag == DT_SONAME ||
                           entry.d_tag == DT_RUNPATH || entry.d_tag == DT_RPATH;
      if (is_name) names_.push_back(entry.d_un.d_val);
      dynamic_[entry.d_tag] = entry.d_un.d_val;
    }
    return damaged("its dynamic section does not end");
  }

  std::uint64_t dynamic(std::int64_t tag, std::uint64_t otherwise = 0) const {
    const auto found = dynamic_.find(tag);
    return found == dynamic_.end() ? otherwise : found->second;
  }

  /// The tables that the dynamic section points to.
  std::string check_tables() {
    struct Table {
      std::int64_t tag;
      std::int64_t bytes_tag;  ///< 0: of unknown size
      std::uint64_t entry_bytes;
    };
    static constexpr std::array<Table, 15> tables = {{{DT_STRTAB, DT_STRSZ, 1},
                                                      {DT_SYMTAB, 0, sizeof(Elf64_Sym)},
                                                      {DT_RELA, DT_RELASZ, sizeof(Elf64_Rela)},
                                                      {DT_JMPREL, DT_PLTRELSZ, sizeof(Elf64_Rela)},
                                                      {DT_RELR, DT_RELRSZ, sizeof(Elf64_Relr)},
                                                      {DT_INIT_ARRAY, DT_INIT_ARRAYSZ, 8},
                                                      {DT_FINI_ARRAY, DT_FINI_ARRAYSZ, 8},
                                                      {DT_HASH, 0, 8},
                                                      {DT_GNU_HASH, 0, 16},
                                                      {DT_VERSYM, 0, 2},
                                                      {DT_VERNEED, 0, sizeof(Elf64_Verneed)},
                                                      {DT_VERDEF, 0, sizeof(Elf64_Verdef)},
                                                      {DT_PLTGOT, 0, 8},
                                                      {DT_INIT, 0, 1},
                                                      {DT_FINI, 0, 1}}};
    for (const Table& table : tables) {
      if (dynamic_.count(table.tag) == 0) continue;
      const std::uint64_t address = dynamic(table.tag);
      const std::uint64_t bytes =
          table.bytes_tag != 0 ? dynamic(table.bytes_tag) : table.entry_bytes;
      if (!in_memory(address, bytes) || bytes % table.entry_bytes != 0) {
        return damaged("entry {:#x} of the dynamic section has {} bytes at {:#x}", table.tag, bytes,
                       address);
      }
    }
    if (dynamic_.count(DT_STRTAB) == 0 || dynamic_.count(DT_SYMTAB) == 0)
      return damaged("it has no table of symbols");
    if (dynamic(DT_SYMENT, sizeof(Elf64_Sym)) != sizeof(Elf64_Sym) ||
        dynamic(DT_RELAENT, sizeof(Elf64_Rela)) != sizeof(Elf64_Rela) ||
        dynamic(DT_RELRENT, sizeof(Elf64_Relr)) != sizeof(Elf64_Relr) ||
        dynamic(DT_PLTREL, DT_RELA) != DT_RELA) {
      return damaged("its tables have entries of another size");
    }
    return "";
  }

  /// The first of them are said to be of one kind, and the linker ends the process when one is not.
  std::string check_relocations() {
    const std::uint64_t count = dynamic(DT_RELACOUNT);
    if (count == 0) return "";
    const std::optional<std::uint64_t> offset = offset_of(dynamic(DT_RELA));
    if (!offset || count > dynamic(DT_RELASZ) / sizeof(Elf64_Rela))
      return damaged("{} relocations of {} bytes", count, dynamic(DT_RELASZ));
    for (std::uint64_t i = 0; i < count; ++i) {
      Elf64_Rela relocation{};
      if (!read(*offset + i * sizeof(relocation), relocation)) return not_whole;
      if (ELF64_R_TYPE(relocation.r_info) != relative_relocation)
        return damaged("relocation {} is of kind {}", i, ELF64_R_TYPE(relocation.r_info));
    }
    return "";
  }

  /// The names of the libraries that it needs, and the text behind them.
  std::string check_strings() {
    const std::uint64_t bytes = dynamic(DT_STRSZ);
    const std::optional<std::uint64_t> offset = offset_of(dynamic(DT_STRTAB));
    char last = 1;
    if (!offset || bytes == 0 || !read(*offset + bytes - 1, last) || last != '\0')
      return damaged("its table of names does not end");
    for (const std::uint64_t name : names_)
      if (name >= bytes) return damaged("a name at {} of {} bytes", name, bytes);
    return "";
  }

  std::ifstream stream_;
  std::uint64_t size_bytes_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Phdr> parts_;
  std::vector<Elf64_Phdr> loaded_;  ///< those of parts_ that are
  std::map<std::int64_t, std::uint64_t> dynamic_;
  std::vector<std::uint64_t> names_;  ///< where the table of names has them
};

}  // namespace

std::string shared_object_problem(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (!fs::exists(status)) return "there is no such file";
  if (!fs::is_regular_file(status)) return "it is not a file";
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error) return error.message();
  return SharedObject(file, bytes).problem();
}

}  // namespace sluice

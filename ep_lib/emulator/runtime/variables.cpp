// The names of a kernel's own variables: __device__, __constant__ and __shared__ ones, from the library's symbol table.
#include <cxxabi.h>
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include <fstream>
#include <iterator>

#include "machine.hpp"

namespace epemu {
namespace {

// "tile" of "_ZZ6kernelPiE4tile" and of "tile.0": the last part of its name in the source.
std::string plain_name(const char* symbol) {
    int status = -1;
    char* demangled = abi::__cxa_demangle(symbol, nullptr, nullptr, &status);
    std::string name = status == 0 ? demangled : symbol;
    free(demangled);
    const size_t scope = name.rfind("::");
    if (scope != std::string::npos) name.erase(0, scope + 2);
    return name.substr(0, name.find('.'));
}

std::vector<Variable> read_variables(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string data{std::istreambuf_iterator<char>(file), {}};
    std::vector<Variable> found;
    Elf64_Ehdr head;
    if (data.size() < sizeof head) return found;
    memcpy(&head, data.data(), sizeof head);
    const auto section = [&](size_t i) {
        Elf64_Shdr s;
        memcpy(&s, data.data() + head.e_shoff + i * sizeof s, sizeof s);
        return s;
    };
    if (head.e_shoff + head.e_shnum * sizeof(Elf64_Shdr) > data.size()) return found;
    for (size_t i = 0; i < head.e_shnum; i++) {
        const Elf64_Shdr table = section(i);
        if (table.sh_type != SHT_SYMTAB) continue;
        const char* names = data.data() + section(table.sh_link).sh_offset;
        for (size_t at = 0; at < table.sh_size; at += sizeof(Elf64_Sym)) {
            Elf64_Sym symbol;
            memcpy(&symbol, data.data() + table.sh_offset + at, sizeof symbol);
            const int type = ELF64_ST_TYPE(symbol.st_info);
            if ((type != STT_OBJECT && type != STT_TLS) || !symbol.st_size || symbol.st_shndx == SHN_UNDEF) continue;
            found.push_back({symbol.st_value, symbol.st_size, type == STT_TLS, plain_name(names + symbol.st_name)});
        }
    }
    return found;
}

// Whether a section holds a kernel's own constants and variables, and not data of the linker and loader, such as the
// table of function addresses.
bool is_the_kernels(const Elf64_Shdr& section, const char* name) {
    if (section.sh_type != SHT_PROGBITS && section.sh_type != SHT_NOBITS) return false;
    if (!(section.sh_flags & SHF_ALLOC) || section.sh_flags & (SHF_EXECINSTR | SHF_TLS)) return false;
    for (const char* of_others : {".got", ".plt", ".eh_frame", ".gcc_except_table", ".interp", ".tm_clone_table"})
        if (strncmp(name, of_others, strlen(of_others)) == 0) return false;
    return true;
}

std::string name_at(Image& image, uint64_t offset, bool shared) {
    if (!image.has_read_variables) image.variables = read_variables(image.path);
    image.has_read_variables = true;
    for (const Variable& v : image.variables)
        if (v.shared == shared && offset >= v.begin && offset < v.begin + v.bytes)
            return "'" + v.name + "'" + (offset == v.begin ? "" : " + " + std::to_string(offset - v.begin) + " bytes");
    return "";
}

}  // namespace

std::vector<Range> memory_of_kernel(const char* path, uintptr_t base, Range protected_range) {
    std::ifstream file(path, std::ios::binary);
    const auto read = [&](void* to, size_t bytes, uint64_t offset) {
        file.seekg(static_cast<std::streamoff>(offset));
        file.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
    };
    Elf64_Ehdr head{};
    read(&head, sizeof head, 0);
    std::vector<Elf64_Shdr> sections(head.e_shnum);
    read(sections.data(), sections.size() * sizeof(Elf64_Shdr), head.e_shoff);
    if (!file || head.e_shstrndx >= sections.size()) return {};
    std::string names(sections[head.e_shstrndx].sh_size, 0);
    read(names.data(), names.size(), sections[head.e_shstrndx].sh_offset);
    std::vector<Range> found;
    for (const Elf64_Shdr& section : sections) {
        if (!file || section.sh_name >= names.size() || !is_the_kernels(section, names.data() + section.sh_name))
            continue;
        const uintptr_t begin = base + section.sh_addr, end = begin + section.sh_size;
        const bool is_protected = begin < protected_range.end && end > protected_range.begin;
        found.push_back({begin, end, (section.sh_flags & SHF_WRITE) != 0 && !is_protected});
    }
    return found;
}

std::string variable_at(const Machine& m, uintptr_t address) {
    for (const auto& image : m.images)
        if (image->contains(address, false)) return name_at(*image, address - image->base, false);
    return "";
}

std::string shared_variable_at(const Block& block, size_t offset) {
    return name_at(*block.launch->image, offset, true);
}

}  // namespace epemu

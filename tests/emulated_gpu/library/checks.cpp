// Checks of memory accesses; checks.h describes them.
#include "checks.h"

#include "../include/emulated_kernel.h"
#include "machine.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <set>
#include <utility>

namespace emulated {

int standard_error = 2;

namespace {

constexpr size_t PAGE = 4096, GRAIN = 4, CELLS = PAGE / GRAIN;
constexpr size_t MOST_FAULTS = 20;
constexpr uint16_t NEVER = 0xffff;
constexpr size_t NEAR = 1 << 16;  // what is as near to an array was meant to be in it

__attribute__((constructor)) void keep_standard_error() { standard_error = dup(2); }

enum Flags : uint8_t { ATOMIC = 1, MANY_LANES = 2, MANY_WARPS = 4, MANY_BLOCKS = 8 };

struct Access {
    uint32_t launch = 0, block = 0;
    uint16_t thread = 0, epoch = 0, warp_epoch = 0;
    uint8_t bytes = 0, flags = 0;  // which of the 4, as bits
};

// The last write, the last read, and the last read of another stream or of other ones of the 4 bytes.
struct Cell {
    Access write, read, other_read;
};

struct Page {
    uint16_t first, end;  // the bytes that belong to the piece of memory
    Owner owner;
    uint8_t device;
    uint16_t without_value = PAGE;  // from here on shared memory begins with no value
    size_t made_stream = 0, made_index = 0;  // who may have used this memory before
    bool is_global = false;  // with variables that the host can find
    bool is_free = false;
    Known free_for;
    Cell* cells = nullptr;
};

// Pages by their number, in two levels.
constexpr int LEAF_BITS = 18;
struct Pages {
    Page*** root = nullptr;
    Page* find(uintptr_t number) const {
        Page** leaf = root ? root[number >> LEAF_BITS] : nullptr;
        return leaf ? leaf[number & ((1 << LEAF_BITS) - 1)] : nullptr;
    }
    Page*& at(uintptr_t number) {
        if (!root) root = static_cast<Page***>(std::calloc(size_t(1) << LEAF_BITS, sizeof(Page**)));
        Page**& leaf = root[number >> LEAF_BITS];
        if (!leaf) leaf = static_cast<Page**>(std::calloc(size_t(1) << LEAF_BITS, sizeof(Page*)));
        return leaf[number & ((1 << LEAF_BITS) - 1)];
    }
};

// What is kept of each piece of work that has begun.
struct Launch {
    uint32_t stream;
    uint32_t index;
    const char* name;
};

struct State {
    bool on = std::getenv("EMULATED_GPU_UNCHECKED") == nullptr;
    Pages pages;
    std::deque<Launch> launches{{0, 0, ""}};
    std::deque<std::string> faults;
    bool peers[MOST_DEVICES][MOST_DEVICES] = {};
    bool no_peers = false;

    // The work that is being done.
    uint32_t number = 0;
    Work work;
    struct {
        std::string text;
        const char* address;
        size_t size;
        char before[16];
    } doubt{};  // threads that write the same value do not race
    size_t dynamic_shared = 0;
    const char *allowed = nullptr, *allowed_end = nullptr;
    uint32_t ordered = 0;  // work that is known to come before
    uint32_t block = 0;
    bool has_fault = false;
    bool fenced = false, saw_atomic = false, acquired = false;  // by the block
    std::vector<uint16_t> released;                             // by each block: up to which barrier
};

// Other threads, which compute nothing, may run code that calls the functions below.
__attribute__((tls_model("initial-exec"))) thread_local bool working = false;

State& state() {
    static State* the_state = new State;
    return *the_state;
}

uint16_t rank() {
    return uint16_t((emulated_thread.z * emulated_threads.y + emulated_thread.y) * emulated_threads.x + emulated_thread.x);
}

// ---- order

bool came_before(uint32_t launch) {
    State& s = state();
    if (launch == s.ordered) return true;
    const Launch& before = s.launches[launch];
    if (before.stream != s.work.stream && !covers(s.work.after, before.stream, before.index)) return false;
    s.ordered = launch;
    return true;
}

// Whether an access of the launch that is running comes before what the present thread does.
bool came_before_in_launch(const Access& before, uint16_t thread) {
    State& s = state();
    if (before.flags & MANY_BLOCKS || before.block != s.block) {
        if (!s.acquired || before.flags & MANY_BLOCKS) return s.acquired;
        return before.block < s.released.size() && s.released[before.block] != NEVER && before.epoch <= s.released[before.block];
    }
    if (before.epoch != uint16_t(emulated_barriers)) return true;
    if (before.flags & MANY_WARPS) return false;
    const bool same_warp = before.thread / 32 == thread / 32;
    if (same_warp && before.warp_epoch != uint16_t(emulated_warp_barriers[thread / 32])) return true;
    return before.thread == thread && !(before.flags & MANY_LANES);
}

std::string where(const Launch& launch) { return std::string(launch.name) + " (stream " + std::to_string(launch.stream) + ")"; }

std::string thread_of_work() {
    const State& s = state();
    const std::string work = where(s.launches[s.number]);
    return s.work.is_kernel ? work + ", thread " + std::to_string(rank()) + " of block " + std::to_string(s.block) + "," : work;
}

std::string name_of(const Piece& piece) {
    const std::string size = std::to_string(piece.size) + " bytes";
    return piece.kind == Kind::pinned ? size + " of pinned memory" : "an array of " + size + " on GPU " + std::to_string(piece.device);
}

bool is_dynamic_shared(const char* address) { return address >= emulated_shared && address < emulated_shared + sizeof emulated_shared; }

std::string place_of(const char* address) {
    const Piece piece = piece_at(address);
    if (piece.kind != Kind::pageable) return "byte " + std::to_string(address - piece.start) + " of " + name_of(piece);
    return is_dynamic_shared(address) ? "byte " + std::to_string(address - emulated_shared) + " of dynamic shared memory" : "shared memory";
}

std::string beyond(const char* address, const Piece& piece) {
    return std::to_string(address - (piece.start + piece.size) + 1) + " bytes beyond the last one of " + name_of(piece);
}

// An address that is in no array, and which one it is near to.
std::string unknown_place(const char* address) {
    char place[32];
    std::snprintf(place, sizeof place, "%p", static_cast<const void*>(address));
    const std::string text = "memory that is no array of a GPU, at " + std::string(place);
    Piece before, after;
    pieces_around(address, &before, &after);
    const size_t past = before.size ? address - (before.start + before.size) : NEAR, ahead = after.size ? after.start - address : NEAR;
    if (std::min(past, ahead) >= NEAR) return text;
    if (past < ahead) return text + ": " + beyond(address, before);
    return text + ": " + std::to_string(ahead) + " bytes before the first one of " + name_of(after);
}

void end_doubt() {
    auto& doubt = state().doubt;
    if (!doubt.size) return;
    const size_t size = std::exchange(doubt.size, 0);
    if (std::memcmp(doubt.address, doubt.before, size)) fault(doubt.text);
}

void tell_race(const Access& before, bool wrote, bool writes, const char* address, size_t size) {
    State& s = state();
    if (s.has_fault) return;
    const Launch& now = s.launches[s.number];
    if (before.launch != s.number) {
        const Launch& then = s.launches[before.launch];
        return fault(where(now) + (writes ? " writes " : " reads ") + place_of(address) + " without waiting for " + where(then) + ", which " +
                     (wrote ? "writes" : "reads") + " the same memory");
    }
    const std::string others = before.flags & MANY_BLOCKS ? "threads of several blocks"
                               : before.flags & (MANY_LANES | MANY_WARPS) ? "several threads of block " + std::to_string(before.block)
                               : "thread " + std::to_string(before.thread) + " of block " + std::to_string(before.block);
    const bool many = before.flags & (MANY_BLOCKS | MANY_LANES | MANY_WARPS);
    const std::string text = thread_of_work() + (writes ? " writes " : " reads ") + place_of(address) + ", which " + others +
                             (wrote ? many ? " write" : " writes" : many ? " read" : " reads") + ", with no barrier between";
    if (!wrote || !writes || (before.flags & ATOMIC) || size > sizeof s.doubt.before) return fault(text);
    s.doubt = {text, address, size, {}};
    std::memcpy(s.doubt.before, address, size);
}

// ---- accesses

void check(const Access& before, const Access& now, bool wrote, bool writes, bool own_shared, const char* address, size_t size) {
    if (!before.launch || !(before.bytes & now.bytes)) return;
    if (before.launch == state().number) {
        if ((before.flags & ATOMIC) && ((now.flags & ATOMIC) || !writes)) return;
        if ((now.flags & ATOMIC) && !wrote) return;  // as the loop of a compare-and-swap reads
        if (own_shared && before.block != now.block) return;
        if (came_before_in_launch(before, now.thread)) return;
    } else if (own_shared || came_before(before.launch)) {
        return;
    }
    tell_race(before, wrote, writes, address, size);
}

void note_read(Cell& cell, Access now, bool own_shared) {
    State& s = state();
    Access& last = cell.read;
    if (last.launch == now.launch && !(last.bytes & now.bytes)) {
        cell.other_read = last;
    } else if (last.launch == now.launch && !(own_shared && last.block != now.block)) {
        if (last.block != now.block) {
            now.flags |= MANY_BLOCKS;
        } else if (last.epoch == now.epoch && last.thread / 32 != now.thread / 32) {
            now.flags |= MANY_WARPS;
        } else if (last.epoch == now.epoch) {
            const bool together = last.warp_epoch == now.warp_epoch;
            if (together && last.thread != now.thread) now.flags |= MANY_LANES;
            now.flags |= last.flags & (together ? MANY_LANES | MANY_WARPS : MANY_WARPS);
        }
        now.flags |= last.flags & MANY_BLOCKS;
        now.bytes |= last.bytes;
    } else if (last.launch && s.launches[last.launch].stream != s.work.stream) {
        cell.other_read = last;
    }
    last = now;
}

// Shared memory is written by each block for itself; CuPy's reductions copy values there that have no meaning.
bool is_unwritten(const Page& page, const Cell& cell, size_t offset) {
    const State& s = state();
    if (page.owner == Owner::device) return !cell.write.launch;
    if (page.owner != Owner::shared || offset < page.without_value || !std::strncmp(s.work.name, "cupy_", 5)) return false;
    if (page.is_global) return false;
    return cell.write.launch != s.number || cell.write.block != s.block;
}

void access_in_page(Page& page, const char* address, size_t size, bool writes, uint8_t flags) {
    State& s = state();
    const size_t offset = reinterpret_cast<uintptr_t>(address) % PAGE;
    const char* verb = writes ? " writes " : " reads ";
    if (offset < page.first || offset + size > page.end) {
        fault(thread_of_work() + verb + (offset < page.first ? unknown_place(address) : beyond(address + size - 1, piece_at(address - offset + page.end - 1))));
        return;
    }
    if (is_dynamic_shared(address) && address + size > emulated_shared + s.dynamic_shared) {
        fault(thread_of_work() + verb + "beyond the " + std::to_string(s.dynamic_shared) + " bytes of its dynamic shared memory");
        return;
    }
    if (s.work.is_kernel && page.owner == Owner::device && page.device != s.work.device && (s.no_peers || !s.peers[s.work.device][page.device]))
        fault(where(s.launches[s.number]) + " on GPU " + std::to_string(s.work.device) + verb + place_of(address) + ", which it has no access to");
    if (page.made_index && page.made_stream != s.work.stream && !covers(s.work.after, page.made_stream, page.made_index))
        fault(where(s.launches[s.number]) + verb + "memory that was allocated on stream " + std::to_string(page.made_stream) +
              ", and does not wait for what that was given before: " + place_of(address));
    if (page.is_free && !covers(page.free_for, s.work.stream, s.work.index))
        fault(where(s.launches[s.number]) + verb + "memory that was freed: " + place_of(address));
    if (!page.cells) page.cells = static_cast<Cell*>(std::calloc(CELLS, sizeof(Cell)));
    const bool shared = page.owner == Owner::shared;
    Access now{s.number, s.block, s.work.is_kernel ? rank() : uint16_t(0), uint16_t(emulated_barriers), 0, 0, flags};
    now.warp_epoch = uint16_t(emulated_warp_barriers[now.thread / 32]);
    for (size_t at = offset; at < offset + size;) {
        const size_t in_cell = at % GRAIN, count = std::min(GRAIN - in_cell, offset + size - at);
        Cell& cell = page.cells[at / GRAIN];
        now.bytes = uint8_t(((1u << count) - 1) << in_cell);
        if (!writes && s.work.is_kernel && is_unwritten(page, cell, at))
            fault(thread_of_work() + " reads what nothing has written: " + place_of(address) +
                  (shared ? " (is a __syncthreads missing?)" : ""));
        check(cell.write, now, true, writes, shared, address, size);
        if (writes) {
            check(cell.read, now, false, true, shared, address, size);
            check(cell.other_read, now, false, true, shared, address, size);
            cell.write = now;
        } else {
            note_read(cell, now, shared);
        }
        at += count;
    }
}

bool is_on_stack(const char* address) {
    thread_local const char *low = nullptr, *high = nullptr;
    if (!low) {
        pthread_attr_t about;
        void* start;
        size_t size;
        pthread_getattr_np(pthread_self(), &about);
        pthread_attr_getstack(&about, &start, &size);
        pthread_attr_destroy(&about);
        low = static_cast<const char*>(start);
        high = low + size;
    }
    return (address >= low && address < high) || emulated_is_on_fiber_stack(address);
}

bool is_our_own(const char* address) {
    const auto inside = [=](const auto& variable) {
        const char* start = reinterpret_cast<const char*>(&variable);
        return address >= start && address < start + sizeof variable;
    };
    return inside(emulated_thread) || inside(emulated_block) || inside(emulated_threads) || inside(emulated_blocks) || inside(emulated_lane);
}

void access_unknown(const char* address, size_t size, bool writes) {
    State& s = state();
    if (!s.work.is_kernel || (address >= s.allowed && address < s.allowed_end)) return;
    if (is_our_own(address) || is_on_stack(address)) return;
    if (piece_at(address).kind != Kind::pageable) return;  // such as memory that the program has pinned
    const std::string text = thread_of_work() + (writes ? " writes " : " reads ") + unknown_place(address);
    if (!s.has_fault) dprintf(standard_error, "emulated GPU: %s\n", text.c_str());  // the process may end now
    fault(text);
}

void access(const void* where, size_t size, bool writes, uint8_t flags = 0) {
    if (!working) return;
    State& s = state();
    if (s.doubt.size) end_doubt();
    const char* address = static_cast<const char*>(where);
    while (size) {
        const size_t count = std::min(size, PAGE - reinterpret_cast<uintptr_t>(address) % PAGE);
        if (Page* page = s.pages.find(reinterpret_cast<uintptr_t>(address) / PAGE)) access_in_page(*page, address, count, writes, flags);
        else access_unknown(address, count, writes);
        address += count;
        size -= count;
    }
}

}  // namespace

// ---- clocks

Known merged(const Known& one, const Known& other) {
    if (!other || one == other) return one;
    if (!one) return other;
    auto made = std::make_shared<Clock>(*one);
    if (made->size() < other->size()) made->resize(other->size());
    for (size_t i = 0; i < other->size(); ++i) (*made)[i] = std::max((*made)[i], (*other)[i]);
    return made;
}
Known with(const Known& known, size_t stream, size_t count) {
    if (covers(known, stream, count)) return known;
    auto made = known ? std::make_shared<Clock>(*known) : std::make_shared<Clock>();
    if (made->size() <= stream) made->resize(stream + 1);
    (*made)[stream] = count;
    return made;
}
bool covers(const Known& known, size_t stream, size_t count) { return !count || (known && stream < known->size() && (*known)[stream] >= count); }

// ---- work

const char* lasting(const std::string& name) {
    static auto* names = new std::set<std::string>;
    return names->insert(name).first->c_str();
}

void begin_work(const Work& work) {
    State& s = state();
    if (!s.on) return;
    s.launches.push_back({uint32_t(work.stream), uint32_t(work.index), work.name});
    s.number = uint32_t(s.launches.size() - 1);
    s.work = work;
    working = true;
    s.has_fault = false;
    s.allowed = s.allowed_end = nullptr;
    s.ordered = s.number;
    s.released.clear();
    begin_block(0);
}
void end_work() {
    end_doubt();
    working = false;
}
void set_dynamic_shared(size_t size) { state().dynamic_shared = size; }
void allow(const void* from, size_t size) {
    state().allowed = static_cast<const char*>(from);
    state().allowed_end = state().allowed + size;
}
void begin_block(size_t number) {
    State& s = state();
    s.block = uint32_t(number);
    s.fenced = s.saw_atomic = s.acquired = false;
    emulated_barriers = 0;
}
void touch(const void* from, size_t size, bool writes) { access(from, size, writes); }

// ---- memory

void watch(const void* from, size_t size, Owner owner, int device) {
    const auto start = reinterpret_cast<uintptr_t>(from), end = start + size;
    for (uintptr_t number = start / PAGE; number * PAGE < end; ++number) {
        Page*& page = state().pages.at(number);
        if (!page) page = new Page;
        const uintptr_t begin = number * PAGE;
        page->first = uint16_t(std::max(start, begin) - begin);
        page->end = uint16_t(std::min(end, begin + PAGE) - begin);
        page->owner = owner;
        page->device = uint8_t(device);
        page->without_value = owner == Owner::shared ? 0 : PAGE;
    }
}

void watch_module(const void* symbol, bool has_globals) {
    Dl_info about;
    if (!dladdr(symbol, &about)) return;
    struct Module {
        void* base;
        bool has_globals;
    } module{about.dli_fbase, has_globals};
    dl_iterate_phdr(
        [](dl_phdr_info* found, size_t, void* given) {
            const auto& module = *static_cast<Module*>(given);
            if (reinterpret_cast<void*>(found->dlpi_addr) != module.base) return 0;
            for (int i = 0; i < found->dlpi_phnum; ++i) {
                const auto& part = found->dlpi_phdr[i];
                if (part.p_type != PT_LOAD) continue;
                const uintptr_t start = (found->dlpi_addr + part.p_vaddr) & ~(PAGE - 1), end = found->dlpi_addr + part.p_vaddr + part.p_memsz;
                watch(reinterpret_cast<void*>(start), (end - start + PAGE - 1) & ~(PAGE - 1), Owner::shared, 0);
                const uintptr_t values_end = found->dlpi_addr + part.p_vaddr + part.p_filesz;
                for (uintptr_t number = start / PAGE; number * PAGE < end; ++number)
                    state().pages.at(number)->without_value =
                        module.has_globals ? PAGE : uint16_t(std::clamp(values_end, number * PAGE, (number + 1) * PAGE) - number * PAGE);
            }
            return 1;
        },
        &module);
}

void mark_global(const void* from, size_t size) {
    const auto start = reinterpret_cast<uintptr_t>(from);
    for (uintptr_t number = start / PAGE; number * PAGE < start + size; ++number)
        if (Page* page = state().pages.find(number)) page->is_global = true;
}

void mark_made(const void* from, size_t size, size_t stream, size_t index) {
    const auto start = reinterpret_cast<uintptr_t>(from);
    for (uintptr_t number = start / PAGE; number * PAGE < start + size; ++number) {
        Page* page = state().pages.find(number);
        page->made_stream = stream;
        page->made_index = index;
    }
}

void mark_free(const void* from, size_t size, const Known& known) {
    State& s = state();
    const auto start = reinterpret_cast<uintptr_t>(from);
    uint32_t user = 0;
    const auto see = [&](const Access& last) {
        const Launch& then = s.launches[last.launch];
        if (last.launch && !covers(known, then.stream, then.index)) user = last.launch;
    };
    for (uintptr_t number = start / PAGE; number * PAGE < start + size; ++number) {
        Page* page = s.pages.find(number);
        if (!page) continue;
        page->is_free = true;
        page->free_for = known;
        for (size_t i = 0; page->cells && i < CELLS && !user; ++i) {
            see(page->cells[i].write);
            see(page->cells[i].read);
            see(page->cells[i].other_read);
        }
    }
    if (user) fault("memory is freed while " + where(s.launches[user]) + " may use it: " + place_of(static_cast<const char*>(from)));
}

void forget_memory(const void* from, size_t size) {
    const auto start = reinterpret_cast<uintptr_t>(from);
    for (uintptr_t number = start / PAGE; number * PAGE < start + size; ++number) {
        Page*& page = state().pages.at(number);
        if (!page) continue;
        std::free(page->cells);
        delete page;
        page = nullptr;
    }
}

void allow_peer(int from, int to, bool allowed) { state().peers[from][to] = allowed; }
void deny_peers(bool deny) { state().no_peers = deny; }

// What is undefined, or other than on a GPU.
void unlike(const std::string& what) {
    if (!working) return;
    fault(thread_of_work() + " " + what);
}

void fault(const std::string& text) {
    State& s = state();
    if (working && s.has_fault) return;  // one of each launch
    s.has_fault = true;
    if (s.faults.size() < MOST_FAULTS) s.faults.push_back(text);
}

}  // namespace emulated

// ---- what compiled kernels call

using emulated::access;

extern "C" {

void emulated_begin_block() {
    const EmulatedIndex at = emulated_block, size = emulated_blocks;
    emulated::begin_block((size_t(at.z) * size.y + at.y) * size.x + at.x);
}
void emulated_fence() {
    auto& s = emulated::state();
    s.fenced = true;
    if (s.saw_atomic) s.acquired = true;
}
void emulated_atomic(const void* place, size_t size) {
    if (!emulated::working) return;
    auto& s = emulated::state();
    access(place, size, true, emulated::ATOMIC);
    s.saw_atomic = true;
    if (!s.fenced) return;
    if (s.released.size() <= s.block) s.released.resize(s.block + 1, emulated::NEVER);
    s.released[s.block] = uint16_t(emulated_barriers);
}

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read1(const void* p) { access(p, 1, false); }
void __tsan_read2(const void* p) { access(p, 2, false); }
void __tsan_read4(const void* p) { access(p, 4, false); }
void __tsan_read8(const void* p) { access(p, 8, false); }
void __tsan_read16(const void* p) { access(p, 16, false); }
void __tsan_write1(const void* p) { access(p, 1, true); }
void __tsan_write2(const void* p) { access(p, 2, true); }
void __tsan_write4(const void* p) { access(p, 4, true); }
void __tsan_write8(const void* p) { access(p, 8, true); }
void __tsan_write16(const void* p) { access(p, 16, true); }
void __tsan_unaligned_read2(const void* p) { access(p, 2, false); }
void __tsan_unaligned_read4(const void* p) { access(p, 4, false); }
void __tsan_unaligned_read8(const void* p) { access(p, 8, false); }
void __tsan_unaligned_read16(const void* p) { access(p, 16, false); }
void __tsan_unaligned_write2(const void* p) { access(p, 2, true); }
void __tsan_unaligned_write4(const void* p) { access(p, 4, true); }
void __tsan_unaligned_write8(const void* p) { access(p, 8, true); }
void __tsan_unaligned_write16(const void* p) { access(p, 16, true); }
void __tsan_read_range(const void* p, unsigned long size) { access(p, size, false); }
void __tsan_write_range(const void* p, unsigned long size) { access(p, size, true); }
void __tsan_vptr_update(void**, void*) {}

// g++'s -fsanitize=undefined calls these, with what it knows of the place first.

struct Mismatch {
    const char* file;
    unsigned line, column;
    void* type;
    unsigned char alignment;  // as a power of 2
};
void __ubsan_handle_type_mismatch_v1(const Mismatch* found, size_t address) {
    emulated::unlike("accesses an address that is no multiple of " + std::to_string(1 << found->alignment));
}
void __ubsan_handle_out_of_bounds(void*, size_t) { emulated::unlike("takes an element beyond the end of an array of its own"); }
void __ubsan_handle_shift_out_of_bounds(void*, size_t, size_t) { emulated::unlike("shifts by as many bits as the number has, or more"); }
void __ubsan_handle_float_cast_overflow(void*, size_t) { emulated::unlike("makes an integer of a float that does not fit"); }

// Returns the next fault; nothing, if there is none.
const char* emulated_next_fault() {
    static std::string text;
    auto& faults = emulated::state().faults;
    if (faults.empty()) return nullptr;
    text = faults.front();
    faults.pop_front();
    return text.c_str();
}

}  // extern "C"

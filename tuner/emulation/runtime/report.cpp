// Collects the reports of a launch; see report.h.
#include "report.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <mutex>

#include "state.h"

namespace emulation {
namespace {

constexpr int kMaxOfOneKind = 8;

std::mutex mutex;
std::map<std::string, int> seen, of_kind;
std::vector<std::string> reports;

}  // namespace

void report(const char* kind, Severity severity, const char* format, ...) {
    char text[1024], whole[1400];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);

    std::lock_guard<std::mutex> lock(mutex);
    Launch* launch = current_launch;
    if (severity == Severity::ends_launch && launch) launch->aborting = true;
    if (seen[std::string(kind) + text]++) return;
    if (of_kind[kind]++ >= kMaxOfOneKind && severity == Severity::goes_on) return;

    const char* kernel = launch ? launch->module->name.c_str() : "?";
    const Fiber* fiber = this_worker ? this_worker->current : nullptr;
    if (fiber) {
        const uint3 b = fiber->block->index, t = fiber->index;
        snprintf(whole, sizeof whole, "%s: %s [%s block (%u,%u,%u) thread (%u,%u,%u)]", kind, text, kernel, b.x, b.y,
                 b.z, t.x, t.y, t.z);
    } else {
        snprintf(whole, sizeof whole, "%s: %s [%s]", kind, text, kernel);
    }
    reports.push_back(whole);
}

bool any_reports() {
    std::lock_guard<std::mutex> lock(mutex);
    return !reports.empty();
}

void clear_reports() {
    std::lock_guard<std::mutex> lock(mutex);
    seen.clear();
    of_kind.clear();
    reports.clear();
}

char* take_reports() {
    std::string all;
    for (const std::string& one : reports) all += one + "\n";
    clear_reports();
    return strdup(all.c_str());
}

std::string position(const char* file, int line) {
    if (!file) return "?";
    const char* slash = strrchr(file, '/');
    return std::string(slash ? slash + 1 : file) + ":" + std::to_string(line);
}

std::string position(uintptr_t program_counter) {
    const Module& module = *current_launch->module;
    if (program_counter < module.text_begin || program_counter >= module.text_end) return "";
    char text[32];
    snprintf(text, sizeof text, "@0x%zx", static_cast<size_t>(program_counter - module.base));
    return text;
}

}  // namespace emulation

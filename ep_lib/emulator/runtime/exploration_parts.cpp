// Parts of an exploration as text (numbers only), for other processes and files. ep_lib/runtime/exhaustion.py reads and
// writes the same.
#include <sstream>

#include "exploration.hpp"

namespace epemu {
namespace {

class Writer {
  public:
    std::string text() const { return out_.str(); }
    template <class Number>
    Writer& operator<<(Number number) {
        out_ << static_cast<int64_t>(number) << ' ';
        return *this;
    }
    template <class T>
    Writer& operator<<(const std::vector<T>& list) {
        *this << list.size();
        for (const T& one : list) *this << one;
        return *this;
    }
    Writer& operator<<(const Exploration::Key& key) {
        for (const int64_t word : key) *this << word;
        return *this;
    }
    Writer& operator<<(const Exploration::Touched& touched) {
        return *this << touched.place << touched.length << static_cast<int>(touched.how);
    }

  private:
    std::ostringstream out_;
};

class Reader {
  public:
    explicit Reader(const std::string& text) : in_(text) {}
    template <class Number>
    Reader& operator>>(Number& number) {
        int64_t read = 0;
        in_ >> read;
        number = static_cast<Number>(read);
        return *this;
    }
    template <class T>
    Reader& operator>>(std::vector<T>& list) {
        size_t size = 0;
        *this >> size;
        list.resize(size);
        for (T& one : list) *this >> one;
        return *this;
    }
    Reader& operator>>(Exploration::Key& key) {
        for (int64_t& word : key) *this >> word;
        return *this;
    }
    Reader& operator>>(Exploration::Touched& touched) {
        int how = 0;
        *this >> touched.place >> touched.length >> how;
        touched.how = static_cast<Touch>(how);
        touched.begin = touched.end = 0;
        return *this;
    }

  private:
    std::istringstream in_;
};

}  // namespace

void Exploration::load(const std::string& text) {
    Reader in(text);
    in >> keys_;
    ids_.clear();
    for (size_t i = 0; i < keys_.size(); i++) ids_[keys_[i]] = static_cast<int>(i);
    size_t nodes = 0;
    in >> nodes;
    nodes_.assign(nodes, {});
    for (Node& node : nodes_) {
        in >> node.shared.number >> node.shared.is_given >> node.chosen >> node.last_thread >> node.preemptions;
        in >> node.enabled >> node.todo;
        for (auto* list : {&node.sleep, &node.done}) {
            size_t asleep = 0;
            in >> asleep;
            list->resize(asleep);
            for (Asleep& one : *list) in >> one.process >> one.touches;
        }
        in >> node.touched >> node.looks >> node.launched >> node.read;
        size_t data = 0;
        in >> data;
        node.data.resize(data);
        for (Data& one : node.data) in >> one.options >> one.value;
    }
    floor_ = settled_ = nodes;
    first_.clear();
    seen_.clear();
    classes_.clear();
    told_.clear();
    status = {};
}

std::string Exploration::save() const {
    Writer out;
    out << keys_ << settled_;
    for (size_t i = 0; i < settled_; i++) {
        const Node& node = nodes_[i];
        out << node.shared.number << node.shared.is_given << node.chosen << node.last_thread << node.preemptions;
        out << node.enabled << node.todo;
        for (const auto* list : {&node.sleep, &node.done}) {
            out << list->size();
            for (const Asleep& one : *list) out << one.process << one.touches;
        }
        out << node.touched << node.looks << node.launched << node.read << node.data.size();
        for (const Data& one : node.data) out << one.options << one.value;
    }
    out << first_ << told_.size();
    for (const Told& one : told_) out << one.shared << one.processes;
    out << classes_;
    return out.text();
}

}  // namespace epemu

package admin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
)

// ErrTopics is wrapped by errors of topics that are not as the catalogue or TopicOptions require, and of topics that
// the cluster is too small for. An operator must resolve them.
var ErrTopics = errors.New("topics and cluster do not fit the configuration")

// checkBrokers returns an error if topics are missing and the cluster has fewer brokers than their replicas need.
func (e *ensurer) checkBrokers(missing int) error {
	want := int(e.o.Replication)
	if missing == 0 || e.brokers >= want {
		return nil
	}
	return fmt.Errorf("%w: kafka.replication is %d and kafka.min_insync %d, but the cluster has %s, and %s must be "+
		"created: start the other brokers, or set kafka.replication to %d and kafka.min_insync to %d%s",
		ErrTopics, want, e.o.MinInSync, count(e.brokers, "broker"), count(missing, "topic"),
		e.brokers, min(e.o.MinInSync, max(1, e.brokers-1)), loss(e.brokers))
}

// loss says what one replica means.
func loss(replicas int) string {
	if replicas > 1 {
		return ""
	}
	return " (one replica: the loss of its disk is the loss of its records)"
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

// fewReplicas returns a mismatch if a topic has fewer replicas than a write needs. Fewer replicas than o.Replication
// are only recorded, for a warning: acknowledged records are on o.MinInSync replicas all the same.
func (e *ensurer) fewReplicas(name string, replicas int, c kadm.ResourceConfig) (mismatch string) {
	needed := e.o.MinInSync
	if v, _ := setting(c, minInSync); needed > 0 {
		if n, err := strconv.Atoi(v); err == nil {
			needed = max(needed, n)
		}
	}
	switch {
	case replicas < needed:
		return fmt.Sprintf("has %s, but %s is %d, so nothing can be written: add replicas "+
			"(kafka-reassign-partitions.sh), or delete the topic if it is empty, and start again",
			count(replicas, "replica"), minInSync, needed)
	case replicas < int(e.o.Replication):
		if e.few == nil {
			e.few = map[int][]string{}
		}
		e.few[replicas] = append(e.few[replicas], name)
	}
	return ""
}

// warnFewReplicas logs the topics with fewer replicas than configured.
func (e *ensurer) warnFewReplicas() {
	for replicas, names := range e.few {
		e.cfg.Logger().Warn("find topics with fewer replicas than kafka.replication", "topics", strings.Join(names, ","),
			"replicas", replicas, "want", e.o.Replication,
			"remedy", "add replicas with kafka-reassign-partitions.sh, or correct kafka.replication")
	}
}

// A differences collects differences of topics. Topics with the same difference share a line.
type differences struct {
	order []string
	names map[string][]string
}

func (d *differences) add(name, difference string) {
	if d.names == nil {
		d.names = map[string][]string{}
	}
	if len(d.names[difference]) == 0 {
		d.order = append(d.order, difference)
	}
	d.names[difference] = append(d.names[difference], name)
}

func (d *differences) errs() (errs []error) {
	for _, difference := range d.order {
		errs = append(errs, fmt.Errorf("%s: %s", strings.Join(d.names[difference], ", "), difference))
	}
	return errs
}

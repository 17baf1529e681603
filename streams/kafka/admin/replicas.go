package admin

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
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

// fewReplicas returns a mismatch if a topic has fewer replicas than o.MinInSync, on which acknowledged records must be:
// for the brokers, min.insync.replicas is at most the number of replicas. Fewer replicas than o.Replication are only
// recorded, for a warning.
func (e *ensurer) fewReplicas(name string, replicas int) (mismatch string) {
	switch {
	case replicas < e.o.MinInSync:
		return fmt.Sprintf("has %s, so acknowledged records would be on %d only, but kafka.min_insync is %d: add replicas "+
			"(kafka-reassign-partitions.sh), or correct kafka.min_insync",
			count(replicas, "replica"), replicas, e.o.MinInSync)
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

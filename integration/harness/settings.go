package harness

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// clusterID is an arbitrary Kafka cluster id: 16 bytes in base64.
const clusterID = "bWlsbHJhY2UtdGVzdHMwMQ"

// endpoint is the bind and the advertised address of a listener.
type endpoint struct{ bind, advertised string }

// brokerSpec describes one broker.
type brokerSpec struct {
	id                       int // from 1
	client, peer, controller endpoint
	data                     string // data directory
}

// settings returns the properties of a broker. Timeouts are seconds instead of production's minutes, so that faults are
// detected quickly.
func settings(p brokerSpec, all []brokerSpec, more ...map[string]string) map[string]string {
	var voters []string
	for _, v := range all {
		voters = append(voters, fmt.Sprintf("%d@%s", v.id, v.controller.advertised))
	}
	replicas, inSync := fmt.Sprint(len(all)), fmt.Sprint(max(1, len(all)-1))
	s := map[string]string{
		"process.roles":             "broker,controller",
		"node.id":                   fmt.Sprint(p.id),
		"controller.quorum.voters":  strings.Join(voters, ","),
		"controller.listener.names": "CONTROLLER",
		"listeners": "CLIENT://" + p.client.bind + ",PEER://" + p.peer.bind + ",CONTROLLER://" +
			p.controller.bind,
		"advertised.listeners": "CLIENT://" + p.client.advertised + ",PEER://" + p.peer.advertised +
			",CONTROLLER://" + p.controller.advertised,
		"inter.broker.listener.name":                       "PEER",
		"listener.security.protocol.map":                   "CLIENT:PLAINTEXT,PEER:PLAINTEXT,CONTROLLER:PLAINTEXT",
		"log.dirs":                                         p.data,
		"auto.create.topics.enable":                        "false",
		"auto.leader.rebalance.enable":                     "false", // only tests move leaders
		"default.replication.factor":                       replicas,
		"min.insync.replicas":                              inSync,
		"offsets.topic.replication.factor":                 replicas,
		"offsets.topic.num.partitions":                     "6",
		"transaction.state.log.replication.factor":         replicas,
		"transaction.state.log.min.isr":                    inSync,
		"transaction.state.log.num.partitions":             "3",
		"share.coordinator.state.topic.replication.factor": replicas,
		"share.coordinator.state.topic.min.isr":            inSync,
		"broker.session.timeout.ms":                        "6000", // fence an unreachable broker after this time
		"group.initial.rebalance.delay.ms":                 "0",
		"group.min.session.timeout.ms":                     "1000",
		"group.consumer.min.session.timeout.ms":            "1000",
		"group.consumer.session.timeout.ms":                "6000",
		"group.consumer.min.heartbeat.interval.ms":         "100",
		"group.consumer.heartbeat.interval.ms":             "500",
	}
	for _, m := range more {
		maps.Copy(s, m)
	}
	return s
}

// properties formats settings as a server.properties file.
func properties(s map[string]string) string {
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s)) {
		fmt.Fprintf(&text, "%s=%s\n", key, s[key])
	}
	return text.String()
}

package embedded

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// StampAppends makes c date the records of topics with LogAppendTime when it appends them, as a real broker does: kfake
// keeps the times of the writers. The records of one batch keep their distances, which a real broker removes.
func StampAppends(c *kfake.Cluster) {
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r := req.(*kmsg.ProduceRequest)
		now := time.Now().UnixMilli()
		for _, t := range r.Topics {
			if !dates(c, t) {
				continue
			}
			for _, p := range t.Partitions {
				stamp(p.Records, now)
			}
		}
		return nil, nil, false
	})
}

// dates reports whether the broker dates the records of a topic. A request names the topic, or from version 13 on its id.
func dates(c *kfake.Cluster, t kmsg.ProduceRequestTopic) bool {
	var info *kfake.TopicInfo
	if t.Topic != "" {
		info = c.TopicInfo(t.Topic)
	} else {
		info = c.TopicIDInfo(t.TopicID)
	}
	if info == nil {
		return false
	}
	kind := info.Configs["message.timestamp.type"]
	return kind != nil && *kind == "LogAppendTime"
}

// Where fields of a batch of records begin, in bytes, and the length of its header.
const (
	magicAt  = 16
	sumAt    = 17 // of all that follows it
	summedAt = 21
	firstAt  = 27 // the time of the first record, to which those of the others are relative
	latestAt = 35 // the latest of all
	headerOf = 61
)

// stamp moves the times of a batch so that the latest is now. A batch that the broker is going to refuse stays as it is.
func stamp(batch []byte, now int64) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	if len(batch) < headerOf || batch[magicAt] != 2 ||
		binary.BigEndian.Uint32(batch[sumAt:]) != crc32.Checksum(batch[summedAt:], castagnoli) {
		return
	}
	first, latest := binary.BigEndian.Uint64(batch[firstAt:]), binary.BigEndian.Uint64(batch[latestAt:])
	binary.BigEndian.PutUint64(batch[firstAt:], uint64(now)-(latest-first)) //nolint:gosec // wraps as the difference does
	binary.BigEndian.PutUint64(batch[latestAt:], uint64(now))               //nolint:gosec // as above
	binary.BigEndian.PutUint32(batch[sumAt:], crc32.Checksum(batch[summedAt:], castagnoli))
}

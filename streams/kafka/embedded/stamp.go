package embedded

import (
	"encoding/binary"
	"hash/crc32"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// SetLogAppendTimes makes c set the timestamps of records in topics with LogAppendTime by clock, as a real broker does;
// kfake keeps those of the producers. Unlike with a real broker, the records of a batch keep their relative timestamps.
func SetLogAppendTimes(c *kfake.Cluster, clock func() time.Time) {
	c.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		r := req.(*kmsg.ProduceRequest)
		now := clock().UnixMilli()
		for _, t := range r.Topics {
			if !stampsTopic(c, t) {
				continue
			}
			for _, p := range t.Partitions {
				stampBatch(p.Records, now)
			}
		}
		return nil, nil, false
	})
}

// stampsTopic reports whether the broker sets the timestamps of records in a topic. A request names the topic, or
// from version 13 on its id.
func stampsTopic(c *kfake.Cluster, t kmsg.ProduceRequestTopic) bool {
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

// Offsets of fields in a record batch, and the length of its header, in bytes.
const (
	magicAt          = 16
	crcAt            = 17 // covers the batch from crcFrom on
	crcFrom          = 21
	firstTimestampAt = 27 // timestamp of the first record; those of the others are relative to it
	maxTimestampAt   = 35 // maximum timestamp
	batchHeader      = 61
)

// stampBatch shifts the timestamps of a batch so that the maximum is now. It leaves a batch alone that the broker
// will reject.
func stampBatch(batch []byte, now int64) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	if len(batch) < batchHeader || batch[magicAt] != 2 ||
		binary.BigEndian.Uint32(batch[crcAt:]) != crc32.Checksum(batch[crcFrom:], castagnoli) {
		return
	}
	first, latest := binary.BigEndian.Uint64(batch[firstTimestampAt:]), binary.BigEndian.Uint64(batch[maxTimestampAt:])
	//nolint:gosec // wraps around as the difference does
	binary.BigEndian.PutUint64(batch[firstTimestampAt:], uint64(now)-(latest-first))
	binary.BigEndian.PutUint64(batch[maxTimestampAt:], uint64(now)) //nolint:gosec // as above
	binary.BigEndian.PutUint32(batch[crcAt:], crc32.Checksum(batch[crcFrom:], castagnoli))
}

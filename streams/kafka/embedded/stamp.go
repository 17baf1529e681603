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

// dates reports whether the broker dates the records of a topic. A request names the topic, or from version 13 on its id.
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

// Where fields of a batch of records begin, in bytes, and the length of its header.
const (
	magicAt          = 16
	crcAt            = 17 // of all that follows it
	crcFrom          = 21
	firstTimestampAt = 27 // the time of the first record, to which those of the others are relative
	maxTimestampAt   = 35 // the latest of all
	batchHeader      = 61
)

// stamp moves the times of a batch so that the latest is now. A batch that the broker is going to refuse stays as it is.
func stampBatch(batch []byte, now int64) {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	if len(batch) < batchHeader || batch[magicAt] != 2 ||
		binary.BigEndian.Uint32(batch[crcAt:]) != crc32.Checksum(batch[crcFrom:], castagnoli) {
		return
	}
	first, latest := binary.BigEndian.Uint64(batch[firstTimestampAt:]), binary.BigEndian.Uint64(batch[maxTimestampAt:])
	binary.BigEndian.PutUint64(batch[firstTimestampAt:], uint64(now)-(latest-first)) //nolint:gosec // wraps as the difference does
	binary.BigEndian.PutUint64(batch[maxTimestampAt:], uint64(now))                  //nolint:gosec // as above
	binary.BigEndian.PutUint32(batch[crcAt:], crc32.Checksum(batch[crcFrom:], castagnoli))
}

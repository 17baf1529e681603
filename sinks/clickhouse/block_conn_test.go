package clickhouse

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/ClickHouse/ch-go/proto"
	ch "github.com/ClickHouse/clickhouse-go/v2"
)

// packets returns the packets that a server may send during an insert, one of each kind.
func packets() [][]byte {
	logs := new(proto.Logs)
	for _, text := range []string{"a query begins", ""} {
		logs.Time.Append(time.Unix(1, 0))
		logs.TimeMicro.Append(2)
		logs.HostName.Append("host")
		logs.QueryID.Append("id")
		logs.ThreadID.Append(3)
		logs.Priority.Append(4)
		logs.Source.Append("executeQuery")
		logs.Text.Append(text)
	}
	values := new(proto.ColInt64)
	values.Append(-1)
	hosts, names, threads, times := new(proto.ColStr), new(proto.ColStr), new(proto.ColUInt64), new(proto.ColDateTime)
	hosts.Append("host")
	names.Append("Query")
	threads.Append(5)
	times.Append(time.Unix(6, 0))
	kinds := new(proto.ColEnum)
	if err := kinds.Infer("Enum8('increment' = 1, 'gauge' = 2)"); err != nil {
		panic(err) // a mistake in the test
	}
	kinds.Append("gauge")
	return [][]byte{
		packet(func(b *proto.Buffer) {
			proto.ServerCodeException.Encode(b)
			(&proto.Exception{Code: 60, Name: "DB::Exception", Message: "no such table"}).EncodeAware(b, revision)
		}),
		packet(proto.ServerCodeEndOfStream.Encode),
		block(proto.ServerCodeData, proto.Input{{Name: "id", Data: new(proto.ColUInt64)}}),
		packet(func(b *proto.Buffer) {
			proto.ServerCodeProgress.Encode(b)
			proto.Progress{Rows: 1, Bytes: 2, TotalRows: 3, WroteRows: 4, WroteBytes: 5}.EncodeAware(b, revision)
		}),
		packet(func(b *proto.Buffer) {
			proto.Profile{Rows: 1, Blocks: 2, Bytes: 3}.EncodeAware(b, revision)
		}),
		packet(func(b *proto.Buffer) {
			proto.TableColumns{First: "a", Second: "b"}.EncodeAware(b, revision)
		}),
		block(proto.ServerCodeLog, proto.Input{
			{Name: "event_time", Data: &logs.Time}, {Name: "event_time_microseconds", Data: &logs.TimeMicro},
			{Name: "host_name", Data: &logs.HostName}, {Name: "query_id", Data: &logs.QueryID},
			{Name: "thread_id", Data: &logs.ThreadID}, {Name: "priority", Data: &logs.Priority},
			{Name: "source", Data: &logs.Source}, {Name: "text", Data: &logs.Text},
		}),
		block(proto.ServerCodeLog, nil),
		block(proto.ServerProfileEvents, proto.Input{
			{Name: "host_name", Data: hosts}, {Name: "current_time", Data: times}, {Name: "thread_id", Data: threads},
			{Name: "type", Data: kinds}, {Name: "name", Data: names}, {Name: "value", Data: values},
		}),
	}
}

func packet(encode func(*proto.Buffer)) []byte {
	b := new(proto.Buffer)
	encode(b)
	return b.Buf
}

func block(code proto.ServerCode, columns proto.Input) []byte {
	return packet(func(b *proto.Buffer) {
		code.Encode(b)
		b.PutString("")
		whole := proto.Block{Columns: len(columns), Info: proto.BlockInfo{BucketNum: -1}}
		if len(columns) > 0 {
			whole.Rows = columns[0].Data.Rows()
		}
		if err := whole.EncodeBlock(b, revision, columns); err != nil {
			panic(err) // a mistake in the test
		}
	})
}

// Whatever packets a server sends, in any order and truncated anywhere, the result of an insert is the wanted
// packet, the server's error, or another error. Nothing after that packet is read.
func FuzzAnswer(f *testing.F) {
	kinds := packets()
	all := make([]byte, 0, len(kinds))
	for i := range kinds {
		f.Add([]byte{byte(i), 2, 1}, false, uint16(0))
		f.Add([]byte{byte(i), byte(i), 1, byte(i)}, true, uint16(i))
		all = append(all, byte(len(kinds)-1-i))
	}
	f.Add(all, true, uint16(0))
	f.Add(all[:len(all)-2], true, uint16(3))
	f.Fuzz(func(t *testing.T, order []byte, end bool, cut uint16) {
		order = order[:min(len(order), 100)]
		want := proto.ServerCodeData
		if end {
			want = proto.ServerCodeEndOfStream
		}
		var sent []byte
		answered, first := 0, proto.ServerCode(255) // end and code of the deciding packet
		for _, n := range order {
			p := kinds[int(n)%len(kinds)]
			sent = append(sent, p...)
			code := proto.ServerCode(p[0])
			if answered == 0 && (code == want || code == proto.ServerCodeException || code == proto.ServerCodeEndOfStream) {
				answered, first = len(sent), code
			}
		}
		sent = sent[:len(sent)-min(len(sent), int(cut))]
		in := bytes.NewReader(sent)
		w := &blockConn{in: proto.NewReader(in), rev: revision}
		err := w.readUntil(want)
		var said *ch.Exception
		switch {
		case answered == 0 || answered > len(sent):
			if err == nil || errors.As(err, &said) {
				t.Errorf("of an answer that is not whole: %v", err)
			}
			return
		case first == want && err != nil, first != want && err == nil:
			t.Errorf("want packet %v, the first that answers is %v: %v", want, first, err)
		case first == proto.ServerCodeException && (!errors.As(err, &said) || said.Code != 60):
			t.Errorf("the server's error is %v", err)
		}
		rest := make([]byte, len(sent)-answered)
		if err := w.in.ReadFull(rest); err != nil || !bytes.Equal(rest, sent[answered:]) {
			t.Errorf("behind the answer are %d bytes that are not those sent (%v)", len(rest), err)
		}
		if _, err := w.in.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("behind all that was sent: %v", err)
		}
	})
}

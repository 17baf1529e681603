package bench

import (
	"fmt"
	"math"
	"math/rand/v2"
	"sort"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace/schemas"
	pb "github.com/millrace/millrace/schemas/millrace/v1"
)

// Accounts. Probe messages belong to the first, floods that delay them to the second.
const (
	mainAccount  = "acme"
	floodAccount = "globex"
)

func accounts() []string { return []string{mainAccount, floodAccount, "hooli", "initech"} }

// Store ids, the same in every account.
const (
	source      = "1"
	destination = "2"
)

// consumedTopic is the topic that the throughput figures consume.
const consumedTopic = schemas.DuplicationHigh

// keys is the number of distinct message keys in every figure.
const keys = 10_000

// commands returns encoded commands of topic consumedTopic. They cycle through all keys and through the accounts.
func commands(accounts ...string) (func(i int) schemas.Record, error) {
	return encoded(func(i int) schemas.Message { return command(consumedTopic, accounts[i%len(accounts)], i, "") })
}

// flood returns commands of one account about other items than the probes. Records of the same key wait for each other
// regardless of their class.
func flood(topic schemas.Topic, account string) (func(i int) schemas.Record, error) {
	return encoded(func(i int) schemas.Message { return command(topic, account, keys+i, "") })
}

// encoded encodes one message per key and returns a function that cycles through them.
func encoded(message func(i int) schemas.Message) (func(i int) schemas.Record, error) {
	recs := make([]schemas.Record, keys)
	for k := range recs {
		var err error
		if recs[k], err = schemas.Encode(message(k)); err != nil {
			return nil, err
		}
	}
	return func(i int) schemas.Record { return recs[i%keys] }, nil
}

func item(i int) string { return fmt.Sprintf("item-%07d", i) }

func epoch() *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: 1_700_000_000} }

// command returns a DuplicationCommand for the copier's Pool. The caller may put any string into cause.
func command(topic schemas.Topic, account string, i int, cause string) schemas.Message {
	c := &pb.DuplicationCommand{
		Account: account, Space: "maps", Item: item(i), SourceStore: source, DestinationStore: destination,
		Reason: pb.DuplicationReason_DUPLICATION_REASON_CHANGE, Cause: cause, Time: epoch(),
	}
	c.Id = schemas.ID("command", account, c.GetItem(), cause)
	return schemas.Message{Topic: topic, Body: c}
}

// zipf draws n keys with a fixed seed. The probability of key k is proportional to 1/(k+1)^0.99, as in the YCSB
// benchmark.
func zipf(n int) []int {
	sums := make([]float64, keys)
	sum := 0.0
	for k := range sums {
		sum += math.Pow(float64(k+1), -0.99)
		sums[k] = sum
	}
	rng := rand.New(rand.NewPCG(3, 4)) //nolint:gosec // the same in each run
	drawn := make([]int, n)
	for i := range drawn {
		drawn[i] = sort.SearchFloat64s(sums, rng.Float64()*sum)
	}
	return drawn
}

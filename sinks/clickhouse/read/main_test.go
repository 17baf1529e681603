package read_test

import (
	"testing"

	"github.com/millrace/millrace/sinks/clickhouse/clickhousetest"
)

func TestMain(m *testing.M) { clickhousetest.Main(m) }

package chvemu

import (
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// envOpen makes the test's own binary a program that opens a file for writing
// and tries to write.
const envOpen = "BERTH_TEST_OPEN"

func TestMain(m *testing.M) {
	if path := os.Getenv(envOpen); path != "" {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			fmt.Print("open: ", err)
			os.Exit(0)
		}
		_, err = f.WriteAt([]byte("written"), 0)
		fmt.Print("write: ", err)
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// newVMM returns a VMM that logs nothing and runs no machine.
func newVMM() *VMM {
	log := slog.New(slog.DiscardHandler)
	return NewVMM(log, &monitor{log: log, start: time.Now()}, accelTCG, nil)
}

#include "textflag.h"

// func flagsAfterExchange(m *[2]uint64) uint64
TEXT ·flagsAfterExchange(SB), NOSPLIT, $0-16
	MOVQ m+0(FP), DI
	XORL AX, AX
	XORL DX, DX
	XORL BX, BX
	XORL CX, CX
	// Flags that are known as they are, and then some that follow from operands.
	PUSHFQ
	POPFQ
	MOVQ $0x049ebe40049ebe40, R8
	MOVQ $5, R9
	SUBQ R8, R9
	CMPXCHG16B (DI)
	PUSHFQ
	POPQ R10
	MOVQ R10, ret+8(FP)
	RET

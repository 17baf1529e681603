
 a013a25d8b6bf2c831b3bed74e7ae4c2fixity-sweep¾˜àÏÀ·"Å˜àÏ€’ô*
checkedí*
passedì2write: connection reset

 5a01e0c2a34b4a10b3ab6f6aa1d4cc57acmephotos"2020/film.mov*122: 0d7a2f1c5be94c1fa8c0e5f1f6b7a931Jè˜àÏÀ¨¥`ræ™àÏÀùï°
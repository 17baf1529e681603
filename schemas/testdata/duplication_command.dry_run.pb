
 0d7a2f1c5be94c1fa8c0e5f1f6b7a931acmephotos"2020/film.mov*1228@²æ™àÏÀùïð